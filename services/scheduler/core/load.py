"""A snapshot of the scheduler's load, for status and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerLoad:
    """One worker whose session is open. live + cached + free blocks is constant."""

    is_draining: bool
    max_num_batched_tokens: int
    # Requests with an output in its running batch.
    num_running: int
    num_live_blocks: int
    num_cached_blocks: int
    num_free_blocks: int


@dataclass(frozen=True)
class SchedulerLoad:
    """Counts are of requests: one with several outputs counts once, and as running if any of them runs."""

    num_waiting: int
    num_running: int
    workers: Mapping[int, WorkerLoad]
