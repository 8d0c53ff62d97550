"""One worker as the scheduler sees it: its blocks, its running batch, the step that it executes."""

from dataclasses import dataclass, field

from services.scheduler.core.kv_cache_manager import KVCacheManager
from services.scheduler.core.load import WorkerLoad
from services.scheduler.core.prefix_cache import CachedBlock
from services.scheduler.core.request import Request, RequestStatus, Sequence
from services.scheduler.core.scheduler_output import ScheduledSequence, SchedulerOutput


@dataclass(eq=False)
class WorkerState:
    """Exists while the worker's session is open."""

    worker: int
    kv_cache: KVCacheManager
    max_num_batched_tokens: int
    max_num_seqs: int
    # Takes nothing new; what runs continues.
    is_draining: bool = False
    # In order of admission.
    running: list[Sequence] = field(default_factory=list)
    in_flight: SchedulerOutput | None = None
    # Ended while in flight: their blocks are freed when the step returns.
    ended_in_flight: list[Sequence] = field(default_factory=list)

    @property
    def num_uncomputed_tokens(self) -> int:
        return sum(sequence.num_uncomputed_tokens for sequence in self.running)

    @property
    def has_room(self) -> bool:
        return len(self.running) < self.max_num_seqs

    @property
    def running_requests(self) -> set[Request]:
        return {sequence.request for sequence in self.running}

    def start(self, sequence: Sequence, computed_blocks: list[CachedBlock]) -> None:
        """Adds it to the running batch, with blocks for all of its present tokens.

        All at once: two prefills that each hold half of what they need would only preempt each other.
        """
        self.kv_cache.adopt(sequence, computed_blocks)
        sequence.status = RequestStatus.RUNNING
        sequence.worker = self.worker
        self.running.append(sequence)
        has_slots = self.kv_cache.allocate_slots(sequence, sequence.num_tokens)
        assert has_slots, "can_admit promised room"

    def preempt(self, sequence: Sequence) -> None:
        """Takes it out of the running batch; it will be recomputed from its tokens."""
        self.running.remove(sequence)
        self.kv_cache.free(sequence)
        sequence.status = RequestStatus.PREEMPTED
        sequence.worker = None

    def end(self, sequence: Sequence) -> None:
        """Removes a finished sequence. Blocks that the step in flight writes are freed when it returns."""
        self.running.remove(sequence)
        if self.in_flight and any(each.sequence is sequence for each in self.in_flight.scheduled):
            self.ended_in_flight.append(sequence)
        else:
            self.kv_cache.free(sequence)

    def begin_step(self, scheduled: list[ScheduledSequence]) -> SchedulerOutput | None:
        """The step that is now in flight; None if nothing is scheduled."""
        if scheduled:
            self.in_flight = SchedulerOutput(self.worker, tuple(scheduled))
        return self.in_flight

    def end_step(self, output: SchedulerOutput) -> None:
        assert self.in_flight is output, "the result of another step"
        self.in_flight = None
        for sequence in self.ended_in_flight:
            self.kv_cache.free(sequence)
        self.ended_in_flight.clear()

    def choose_victim(self) -> Sequence:
        """The newest of the lowest priority; never the oldest, so that one sequence always makes progress."""
        oldest = min(self.running, key=lambda each: (each.request.arrival_time, each.output_index))
        others = [each for each in self.running if each is not oldest]
        assert others, "one sequence alone always fits: admission checked that"
        return max(
            others, key=lambda each: (-each.request.priority, each.request.arrival_time, each.output_index)
        )

    def load(self) -> WorkerLoad:
        blocks = self.kv_cache.block_pool
        return WorkerLoad(
            is_draining=self.is_draining,
            max_num_batched_tokens=self.max_num_batched_tokens,
            num_running=len(self.running_requests),
            num_live_blocks=blocks.num_live,
            num_cached_blocks=blocks.num_cached,
            num_free_blocks=blocks.num_free,
        )

    def check_integrity(self) -> None:
        """The batch is within its limit, and each block table is accounted for."""
        assert len(self.running) <= self.max_num_seqs
        for sequence in self.running:
            assert sequence.status is RequestStatus.RUNNING, sequence
            assert sequence.worker == self.worker, sequence
        self.kv_cache.check_integrity(self.running + self.ended_in_flight)
