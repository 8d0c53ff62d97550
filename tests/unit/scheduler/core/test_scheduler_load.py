"""Heavier loads than the state machine's: pools so small that preemption is the rule."""

from collections.abc import Iterator
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.prefix_cache import HashBlock, hash_block
from tests.support.fake_worker_core import VOCAB_SIZE
from tests.unit.scheduler.core.cluster import Cluster, constant_hash, one_byte_hash

BLOCK_SIZES = (1, 2, 3, 16)


def add_random_request(cluster: Cluster, random: Random) -> None:
    """Any length that every pool can hold; a start that others may have too."""
    capacity = min(fake.num_blocks - 1 for fake in cluster.fakes.values()) * cluster.block_size
    prompt_len = random.randint(1, min(30, capacity - 1))
    common = random.randint(0, prompt_len)
    cluster.add(
        [*range(common), *(random.randrange(VOCAB_SIZE) for _ in range(prompt_len - common))],
        max_tokens=random.randint(1, min(40, capacity - prompt_len)),
        seeds=[random.randrange(4) for _ in range(random.choice([1, 1, 2, 3]))],
        priority=random.randint(-2, 2),
        prompt_logprobs=random.choice([None, None, 0]),
        cache_salt=random.choice(["", "tenant"]),
        stop_token_ids=frozenset(random.sample(range(VOCAB_SIZE), random.randint(0, 2))),
        min_tokens=random.randint(0, 3),
    )


@settings(max_examples=200, deadline=None)
@given(
    random=st.randoms(use_true_random=True),
    num_blocks=st.lists(st.integers(4, 12), min_size=1, max_size=3),
    block_size=st.sampled_from(BLOCK_SIZES),
    max_num_seqs=st.integers(2, 6),
    max_num_batched_tokens=st.integers(1, 40),
    hash_function=st.sampled_from([hash_block, one_byte_hash, constant_hash]),
)
def test_every_request_of_a_random_load_ends_with_the_undisturbed_output(
    random: Random,
    num_blocks: list[int],
    block_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    hash_function: HashBlock,
) -> None:
    cluster = Cluster(
        *num_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        hash_function=hash_function,
    )
    for _ in range(random.randint(5, 20)):
        add_random_request(cluster, random)
        if random.random() < 0.5:
            cluster.step(random.randrange(len(num_blocks)))
    cluster.run(max_rounds=4000)
    cluster.check_ended()


def test_after_2000_requests_with_aborts_in_every_phase_nothing_is_live() -> None:
    random = Random(7)
    cluster = Cluster(10, 16, block_size=4, max_num_seqs=6, max_num_batched_tokens=24)
    phases: set[str] = set()
    for _ in range(2000):
        add_random_request(cluster, random)
        for worker in phase_by_phase(cluster, random):
            request = random.choice(list(cluster.transcripts)[-12:])
            output_index = random.choice([None, 0, 1])
            phases.update(sequence.status.name for sequence in request.sequences)
            phases.update(["IN_FLIGHT"] if cluster.in_flight.get(worker) else [])
            if random.random() < 0.2:
                cluster.abort(request, output_index)
    cluster.run()
    cluster.check_ended()
    assert phases == {"WAITING", "RUNNING", "PREEMPTED", "FINISHED", "IN_FLIGHT"}


def phase_by_phase(cluster: Cluster, random: Random) -> Iterator[int]:
    """Steps of both workers, with a pause at each point where the engine lets callers have their turn."""
    for _ in range(4):
        for worker in cluster.fakes:
            if worker in cluster.in_flight:
                cluster.finish(worker)
            elif cluster.begin(worker) is None:
                continue
            yield worker
