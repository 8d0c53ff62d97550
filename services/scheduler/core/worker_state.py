"""One worker as the scheduler plans for it."""

from dataclasses import dataclass, field

from services.scheduler.core.kv_cache_manager import KVCacheManager
from services.scheduler.core.request import Sequence
from services.scheduler.core.scheduler_output import SchedulerOutput


@dataclass(eq=False)
class WorkerState:
    """Exists while the worker's session is open."""

    kv_cache: KVCacheManager
    max_num_batched_tokens: int
    max_num_seqs: int
    # Takes nothing new; what runs goes on.
    draining: bool = False
    # In order of admission.
    running: list[Sequence] = field(default_factory=list)
    in_flight: SchedulerOutput | None = None
    # Ended while in flight: their blocks are freed when the step is back.
    ended_in_flight: list[Sequence] = field(default_factory=list)

    @property
    def num_uncomputed_tokens(self) -> int:
        """What there is to do."""
        return sum(sequence.num_uncomputed_tokens for sequence in self.running)

    @property
    def has_place(self) -> bool:
        """Whether the running batch has room for one more."""
        return len(self.running) < self.max_num_seqs

    def is_in_flight(self, sequence: Sequence) -> bool:
        """Whether the step on the worker now includes it."""
        scheduled = self.in_flight.scheduled if self.in_flight else ()
        return any(each.sequence is sequence for each in scheduled)

    def choose_victim(self) -> Sequence:
        """The newest of the lowest priority. The oldest never is, so that something always ends."""
        oldest = min(self.running, key=lambda each: (each.request.arrival_time, each.output_index))
        others = [each for each in self.running if each is not oldest]
        assert others, "one sequence alone always fits: admission checked that"
        return max(
            others, key=lambda each: (-each.request.priority, each.request.arrival_time, each.output_index)
        )
