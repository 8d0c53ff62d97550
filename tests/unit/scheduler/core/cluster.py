"""A Scheduler with fake workers, and everything that must hold after each move of either."""

from collections.abc import Iterable
from collections.abc import Sequence as ImmutableSequence
from dataclasses import dataclass, field
from typing import Any

from services.scheduler.core.events import (
    Event,
    FailedEvent,
    FinishedEvent,
    PromptLogprobsEvent,
    ScheduledEvent,
    TokenEvent,
)
from services.scheduler.core.kv_cache_manager import KVCacheManager
from services.scheduler.core.prefix_cache import HashBlock, hash_block
from services.scheduler.core.request import FinishReason, Request, Sequence
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.scheduler_output import (
    ModelRunnerOutput,
    SampleFailure,
    SchedulerOutput,
    SequenceOutput,
)
from tests.support.fake_worker_core import (
    FakeWorkerCore,
    SequenceCall,
    undisturbed_output,
    undisturbed_prompt_logprobs,
)


def one_byte_hash(parent_hash: bytes, token_ids: ImmutableSequence[int]) -> bytes:
    """Collides often."""
    return hash_block(parent_hash, token_ids)[:1]


def constant_hash(parent_hash: bytes, token_ids: ImmutableSequence[int]) -> bytes:
    """Collides always."""
    return b"same"


@dataclass
class Transcript:
    """What the caller of one request was told."""

    num_scheduled: int = 0
    prompt_logprobs: list[int] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    finish_reasons: dict[int, FinishReason] = field(default_factory=dict)
    failure: FailedEvent | None = None


class Cluster:
    """Time is a step counter. Every event is checked against the undisturbed run when it arrives."""

    def __init__(
        self,
        *num_blocks: int,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        aging_seconds: float = 10.0,
        hash_function: HashBlock = hash_block,
    ) -> None:
        """One worker per element of `num_blocks`, which counts the null block."""
        self.scheduler: Scheduler[int] = Scheduler(max_num_seqs, max_num_batched_tokens, aging_seconds)
        self.block_size = block_size
        self.hash_function = hash_function
        self.fakes: dict[int, FakeWorkerCore] = {}
        self.in_flight: dict[int, tuple[SchedulerOutput, list[SequenceCall]]] = {}
        self.transcripts: dict[Request, Transcript] = {}
        self.now = 0.0
        for worker, count in enumerate(num_blocks):
            self.add_worker(worker, count)

    # What the engine does.

    def add_worker(self, worker: int, num_blocks: int, max_num_batched_tokens: int = 1 << 20) -> None:
        """With an empty cache."""
        self.fakes[worker] = FakeWorkerCore(num_blocks, self.block_size)
        kv_cache = KVCacheManager(num_blocks, self.block_size, "a model", self.hash_function)
        self.scheduler.add_worker(worker, kv_cache, max_num_batched_tokens)
        self.scheduler.check_integrity()

    def remove_worker(self, worker: int) -> None:
        """Also while its step is in flight, whose result is then lost."""
        del self.fakes[worker]
        self.in_flight.pop(worker, None)
        self._record(self.scheduler.remove_worker(worker))

    def add(
        self, prompt_token_ids: Iterable[int], max_tokens: int = 4, n: int = 1, **parameters: Any
    ) -> Request:
        """Queues a request; later ones have later arrival times."""
        name = f"request-{len(self.transcripts)}"
        seeds = tuple(parameters.pop("seeds", range(n)))
        parameters.setdefault("arrival_time", self.now)
        self.now += 1 / 1024
        request = Request(name, name, tuple(prompt_token_ids), max_tokens, seeds, **parameters)
        self.transcripts[request] = Transcript(tokens={index: [] for index in range(len(seeds))})
        self.scheduler.add_request(request)
        self.scheduler.check_integrity()
        return request

    def abort(self, request: Request, output_index: int | None = None) -> int:
        """How many outputs it ended."""
        events = self.scheduler.abort(request, output_index)
        self._record(events)
        return len(events)

    def begin(self, worker: int = 0) -> SchedulerOutput | None:
        """Plans a step and sends it."""
        self.now += 1.0
        ages = [(each.request.arrival_time, each.output_index) for each in self.running(worker)]
        oldest = self.running(worker)[ages.index(min(ages))] if ages else None
        output, events = self.scheduler.schedule(worker, self.now)
        assert oldest is None or oldest in self.running(worker), "the oldest was preempted"
        self._record(events)
        if output is None:
            assert not self.running(worker), "what runs got nothing"
        else:
            self._check_output(output)
            self.in_flight[worker] = (output, self.fakes[worker].prepare(output))
        return output

    def finish(self, worker: int = 0, failing: int | None = None) -> None:
        """Executes the step in flight; `failing`: the place in it of a sequence without finite logits."""
        output, calls = self.in_flight.pop(worker)
        pool = self.scheduler._workers[worker].kv_cache.block_pool
        for call in calls:
            assert all(pool.num_references(block_id) > 0 for block_id in call.block_ids), "freed in flight"
        result = self.fakes[worker].execute(calls)
        if failing is not None:
            result = _with_failure(result, failing)
        self._record(self.scheduler.update(output, result, self.now))

    def step(self, worker: int = 0) -> SchedulerOutput | None:
        """A whole step."""
        output = self.begin(worker)
        if output is not None:
            self.finish(worker)
        return output

    def run(self, max_rounds: int = 1000) -> int:
        """Steps of all workers until every request has ended; how many rounds that took."""
        for worker in list(self.in_flight):
            self.finish(worker)
        for num_rounds in range(max_rounds):
            if self.is_idle:
                return num_rounds
            outputs = [self.step(worker) for worker in self.fakes]
            assert any(outputs), f"nothing runs, and {list(self.scheduler._waiting)} wait"
        raise AssertionError(f"not done after {max_rounds} rounds")

    # What tests look at.

    @property
    def is_idle(self) -> bool:
        """Nothing runs or waits."""
        load = self.scheduler.load()
        return load.num_waiting == load.num_running == 0

    def tokens(self, request: Request, output_index: int = 0) -> list[int]:
        """The tokens delivered for an output."""
        return self.transcripts[request].tokens[output_index]

    def running(self, worker: int = 0) -> list[Sequence]:
        """In order of admission."""
        return self.scheduler._workers[worker].running

    def gauges(self, worker: int = 0) -> tuple[int, int, int]:
        """Live, cached and free blocks."""
        pool = self.scheduler._workers[worker].kv_cache.block_pool
        return pool.num_live, pool.num_cached, pool.num_free

    def check_ended(self) -> None:
        """Every request ended in the one right way, and nothing is held any more."""
        for request, transcript in self.transcripts.items():
            assert request.is_finished, request
            if transcript.failure is None:
                assert set(transcript.finish_reasons) == set(transcript.tokens), request
                if FinishReason.ABORT not in transcript.finish_reasons.values():
                    self._check_prompt_logprobs_complete(request)
        for worker, fake in self.fakes.items():
            live, cached, free = self.gauges(worker)
            assert live == 0
            assert cached + free == fake.num_blocks - 1

    # What must always hold.

    def _check_output(self, output: SchedulerOutput) -> None:
        state = self.scheduler._workers[output.worker]
        kv_cache = state.kv_cache
        assert 0 < output.num_tokens <= state.max_num_batched_tokens
        assert len(state.running) <= min(state.max_num_seqs, state.max_num_batched_tokens)
        sequences = [scheduled.sequence for scheduled in output.scheduled]
        assert len(set(sequences)) == len(sequences)
        for scheduled, call in zip(output.scheduled, self.fakes[output.worker].prepare(output), strict=True):
            assert scheduled.context_len == scheduled.sequence.num_computed_tokens
            for block_id in self.fakes[output.worker].written_blocks(call):
                assert kv_cache.block_pool.num_references(block_id) == 1, "a shared block is written"
                assert kv_cache.prefix_cache.get(block_id) is None, "a cached block is written"
        is_decoding = [each for each in state.running if each.num_uncomputed_tokens == 1]
        assert set(is_decoding) <= set(sequences), "a decode got no token"

    def _record(self, events: list[Event[int]]) -> None:
        for event in events:
            transcript = self.transcripts[event.request]
            assert transcript.failure is None, "an event after the failure"
            self._record_one(event.request, transcript, event)
        self.scheduler.check_integrity()

    def _record_one(self, request: Request, transcript: Transcript, event: Event[int]) -> None:
        match event:
            case ScheduledEvent():
                transcript.num_scheduled += 1
                assert transcript.num_scheduled == 1
                assert request.first_scheduled_time == self.now
            case PromptLogprobsEvent(first_position=first, positions=positions):
                assert transcript.num_scheduled == 1
                assert not any(transcript.tokens.values()), "prompt log-probabilities after the first chunk"
                assert first == len(transcript.prompt_logprobs) + 1, "a position lost or doubled"
                transcript.prompt_logprobs += positions
                expected = undisturbed_prompt_logprobs(request)
                assert transcript.prompt_logprobs == expected[: first + len(positions) - 1]
            case TokenEvent(sequence=sequence, token=token):
                self._check_prompt_logprobs_complete(request)
                assert sequence.output_index not in transcript.finish_reasons, "a token after the end"
                tokens = transcript.tokens[sequence.output_index]
                tokens.append(token.token_id)
                expected_tokens, _ = undisturbed_output(request, sequence.output_index)
                assert tokens == expected_tokens[: len(tokens)]
            case FinishedEvent():
                self._record_finished(transcript, event)
            case FailedEvent():
                transcript.failure = event

    def _record_finished(self, transcript: Transcript, event: FinishedEvent[int]) -> None:
        request, index = event.sequence.request, event.sequence.output_index
        assert index not in transcript.finish_reasons, "ended twice"
        transcript.finish_reasons[index] = event.finish_reason
        if event.finish_reason is FinishReason.ABORT:
            return
        tokens = list(transcript.tokens[index])
        if event.stop_token is not None:
            tokens.append(event.stop_token.token_id)
        assert (tokens, event.finish_reason) == undisturbed_output(request, index)
        assert tokens == event.sequence.output_token_ids, "usage counts other tokens"

    def _check_prompt_logprobs_complete(self, request: Request) -> None:
        wanted = undisturbed_prompt_logprobs(request) if request.prompt_logprobs is not None else []
        assert self.transcripts[request].prompt_logprobs == wanted


def _with_failure(result: ModelRunnerOutput[int], failing: int) -> ModelRunnerOutput[int]:
    sequences = list(result.sequences)
    sequences[failing] = SequenceOutput(SampleFailure("LOGITS_NOT_FINITE"))
    return ModelRunnerOutput(tuple(sequences), result.worker_seconds)
