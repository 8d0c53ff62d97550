"""The engine: the requests that have not ended, the core that schedules them, and a loop for each worker."""

import asyncio

from triptych.v1 import scheduler_pb2

from services.scheduler import metrics
from services.scheduler.active_request import ActiveRequest, ActiveRequests
from services.scheduler.config import SchedulerConfig
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.step import Logprobs
from services.scheduler.worker_client import FencedError, WorkerClient
from services.scheduler.worker_loop import WorkerLoop
from services.scheduler.worker_pool import WorkerPool
from shared.errors import Reason, ServiceError
from shared.log import get_logger

_log = get_logger()


class Engine:
    """All methods run on one event loop, and none of them waits."""

    def __init__(self, config: SchedulerConfig, workers: list[WorkerClient]) -> None:
        self._scheduler: Scheduler[Logprobs] = Scheduler(
            config.max_num_seqs, config.max_num_batched_tokens, config.priority_aging
        )
        self._max_waiting = config.max_waiting
        self._requests = ActiveRequests(self._scheduler)
        self.pool = WorkerPool()
        self._loops = [
            WorkerLoop(worker, client, self._scheduler, self.pool, self._requests, self._on_change)
            for worker, client in enumerate(workers)
        ]
        self.is_fenced = False
        # Set whenever `is_ready` has changed.
        self.readiness_changed = asyncio.Event()
        self._was_ready = False
        metrics.MAX_NUM_SEQS.set(config.max_num_seqs)
        metrics.MAX_WAITING.set(config.max_waiting)

    @property
    def is_ready(self) -> bool:
        """A worker takes new work, and no later scheduler has taken the workers over."""
        return not self.is_fenced and self._scheduler.has_serving_worker

    async def run(self) -> None:
        """Serves every worker until cancelled, or until a later scheduler has taken them over."""
        try:
            async with asyncio.TaskGroup() as group:
                for loop in self._loops:
                    group.create_task(loop.run())
        except* FencedError as errors:
            self.is_fenced = True
            _log.error("fenced", why=[str(error) for error in errors.exceptions])

    def check_ready(self) -> None:
        """Raises NO_WORKER while no new work can be taken."""
        if not self.is_ready:
            why = "a later scheduler took the workers over" if self.is_fenced else "no worker is ready"
            raise ServiceError(Reason.NO_WORKER, why, retry_after_seconds=1.0)

    def check_room(self) -> None:
        """Raises QUEUE_FULL if the queue is at its limit."""
        num_waiting = self._scheduler.load().num_waiting
        if num_waiting >= self._max_waiting and not self._scheduler.has_idle_room:
            message = f"{num_waiting} requests wait; allowed: {self._max_waiting}"
            raise ServiceError(Reason.QUEUE_FULL, message, retry_after_seconds=1.0)

    def submit(self, active: ActiveRequest) -> None:
        """Takes a checked request into the queue."""
        self._requests.add(active)
        active.admitted()
        self._scheduler.add_request(active.request)
        self._on_change()

    def abort(self, generation_id: str, output_index: int | None = None) -> int:
        """Ends a request or one output; returns how many live outputs that were, 0 for unknown ones."""
        active = self._requests.get(generation_id)
        if active is None:
            return 0
        events = self._scheduler.abort(active.request, output_index)
        self._requests.publish(events)
        self._on_change()
        return len(events)

    def status(self) -> scheduler_pb2.GetStatusResponse:
        load = self._scheduler.load()
        response = scheduler_pb2.GetStatusResponse(num_waiting=load.num_waiting, num_running=load.num_running)
        for worker, loop in enumerate(self._loops):
            status = response.workers.add(address=loop.address)
            if (worker_load := load.workers.get(worker)) is not None:
                status.ready = not worker_load.is_draining
                status.num_running = worker_load.num_running
                status.num_live_blocks = worker_load.num_live_blocks
                status.num_cached_blocks = worker_load.num_cached_blocks
                status.num_free_blocks = worker_load.num_free_blocks
        return response

    def check_integrity(self) -> None:
        """Holds when every call has ended."""
        self._scheduler.check_integrity()
        assert len(self._requests) == 0, "a request without a call"

    def _on_change(self) -> None:
        """Wakes all loops: something was queued or freed, or a worker connected, drains or was lost."""
        for loop in self._loops:
            loop.wake()
        if self.is_ready != self._was_ready:
            self._was_ready = self.is_ready
            self.readiness_changed.set()
