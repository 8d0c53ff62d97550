"""Random loads, aborts, losses and drains on tiny pools: whatever happens, outputs are undisturbed."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from services.scheduler.core.prefix_cache import HashBlock, hash_block
from tests.support.fake_worker_core import VOCAB_SIZE
from tests.unit.scheduler.core.cluster import Cluster, constant_hash, one_byte_hash

WORKER_IDS = range(3)
WORKERS = st.sampled_from(WORKER_IDS)
# Prompts are pieces of one text, so that their starts agree often.
TEXT = tuple(index * 7 % VOCAB_SIZE for index in range(200))


class SchedulerMachine(RuleBasedStateMachine):
    """The rules are what the engine and its callers may do, in any order."""

    @initialize(
        num_blocks=st.lists(st.integers(3, 12), min_size=1, max_size=3),
        block_size=st.sampled_from([1, 2, 4, 16]),
        max_num_seqs=st.integers(1, 6),
        max_num_batched_tokens=st.integers(1, 24),
        hash_function=st.sampled_from([hash_block, one_byte_hash, constant_hash]),
    )
    def start(
        self,
        num_blocks: list[int],
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        hash_function: HashBlock,
    ) -> None:
        self.cluster = Cluster(
            *num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            hash_function=hash_function,
        )

    @property
    def capacity(self) -> int:
        """Tokens that every worker present can hold: the engine admits no longer requests."""
        return min(fake.num_blocks - 1 for fake in self.cluster.fakes.values()) * self.cluster.block_size

    @rule(
        data=st.data(),
        copies=st.integers(1, 3),
        n=st.integers(1, 3),
        priority=st.integers(-2, 2),
        prompt_logprobs=st.none() | st.just(0),
        cache_salt=st.sampled_from(["", "a"]),
        stop_token_ids=st.frozensets(st.integers(0, VOCAB_SIZE - 1), max_size=2),
        min_tokens=st.integers(0, 3),
    )
    def add_requests(self, data: st.DataObject, copies: int, n: int, **parameters: Any) -> None:
        if not self.cluster.fakes:
            return
        prompt_len = data.draw(st.integers(1, min(self.capacity - 1, 40)), "prompt_len")
        max_tokens = data.draw(st.integers(1, min(self.capacity - prompt_len, 40)), "max_tokens")
        num_shared = data.draw(st.integers(0, prompt_len), "num_shared")
        prompt = TEXT[:num_shared] + TEXT[num_shared + 1 : prompt_len + 1]
        for _ in range(copies):
            self.cluster.add(prompt, max_tokens, n, **parameters)

    @rule(worker=WORKERS)
    def begin_or_finish(self, worker: int) -> None:
        if worker in self.cluster.in_flight:
            self.cluster.finish(worker)
        elif worker in self.cluster.fakes:
            self.cluster.begin(worker)

    @rule(num_rounds=st.integers(1, 8))
    def advance_all(self, num_rounds: int) -> None:
        for _ in range(num_rounds):
            for worker in WORKER_IDS:
                self.begin_or_finish(worker)

    @rule(worker=WORKERS)
    def finish_with_a_failed_sequence(self, worker: int) -> None:
        if worker in self.cluster.in_flight:
            output, _ = self.cluster.in_flight[worker]
            sampling = [place for place, each in enumerate(output.scheduled) if each.samples]
            self.cluster.finish(worker, sampling[-1] if sampling else None)

    @rule(data=st.data(), output_index=st.none() | st.integers(0, 3))
    def abort(self, data: st.DataObject, output_index: int | None) -> None:
        if self.cluster.transcripts:
            request = data.draw(st.sampled_from(list(self.cluster.transcripts)), "request")
            self.cluster.abort(request, output_index)
            assert self.cluster.abort(request, output_index) == 0

    @rule(worker=WORKERS, num_blocks=st.integers(3, 12))
    def lose_or_return_worker(self, worker: int, num_blocks: int) -> None:
        if worker in self.cluster.fakes:
            self.cluster.remove_worker(worker)
        else:
            self.cluster.add_worker(worker, num_blocks)

    @rule(worker=WORKERS, draining=st.booleans())
    def drain(self, worker: int, draining: bool) -> None:
        if worker in self.cluster.fakes:
            self.cluster.scheduler.set_draining(worker, draining)

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        for worker in self.cluster.fakes:
            self.cluster.scheduler.set_draining(worker, False)
        num_tokens = sum(
            (len(request.prompt_token_ids) + request.max_tokens) * len(request.seeds)
            for request in self.cluster.transcripts
        )
        self.cluster.run(max_rounds=4 * num_tokens + 10)
        self.cluster.check_ended()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
