"""Which waiting sequence starts on which worker: pure questions over the queue and the workers' states."""

from collections.abc import Collection, Iterable

from services.scheduler.core.prefix_cache import CachedBlock
from services.scheduler.core.request import RequestStatus, Sequence
from services.scheduler.core.worker_state import WorkerState


def choose_next(
    waiting: Iterable[Sequence], worker: WorkerState, workers: Collection[WorkerState]
) -> tuple[Sequence, list[CachedBlock]] | None:
    """The sequence that this worker starts now, with the cached blocks that it starts from.

    That is the first in the queue that may run here. None if there is none, if another worker suits it
    better, or if it does not fit beside what runs: those behind it do not overtake it.
    """
    sequence = next((each for each in waiting if worker in _allowed_workers(each, workers)), None)
    if sequence is None or _has_better_worker(sequence, worker, workers):
        return None
    computed_blocks = worker.kv_cache.get_computed_blocks(sequence)
    return (sequence, computed_blocks) if worker.kv_cache.can_admit(sequence, computed_blocks) else None


def can_any_hold(sequence: Sequence, workers: Iterable[WorkerState]) -> bool:
    """Whether the cache of some worker is large enough: workers may differ."""
    return any(worker.kv_cache.can_hold(sequence) for worker in workers)


def _allowed_workers(sequence: Sequence, workers: Iterable[WorkerState]) -> list[WorkerState]:
    """Those that can hold it. A draining one only resumes what has run before, and only if no other can."""
    holding = [worker for worker in workers if worker.kv_cache.can_hold(sequence)]
    serving = [worker for worker in holding if not worker.is_draining]
    return serving if serving or sequence.status is RequestStatus.WAITING else holding


def _has_better_worker(sequence: Sequence, worker: WorkerState, workers: Iterable[WorkerState]) -> bool:
    """Whether another worker has fewer tokens to compute and could start it now."""
    return any(
        other.num_uncomputed_tokens < worker.num_uncomputed_tokens
        and other.has_room
        and other.kv_cache.can_admit(sequence, [])
        for other in _allowed_workers(sequence, workers)
    )
