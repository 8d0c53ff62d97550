"""The engine: one loop per worker that schedules, executes, updates and publishes.

It never waits for a caller. What the core decides is published into each request's OutputStream, which its
caller reads while the worker computes the next step.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from time import monotonic

from triptych.v1 import scheduler_pb2, worker_pb2

from services.scheduler import metrics
from services.scheduler.active_request import ActiveRequest
from services.scheduler.config import SchedulerConfig
from services.scheduler.core import scheduler_output as core
from services.scheduler.core.kv_cache_manager import KVCacheManager
from services.scheduler.core.request import Request
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.step import build_step, parse_result
from services.scheduler.worker_client import RETRY_SECONDS, FencedError, WorkerClient, WorkerLostError
from services.scheduler.worker_pool import WorkerPool
from shared.errors import Reason, ServiceError
from shared.log import get_logger

_log = get_logger()
_OF_SEQUENCE = (core.TokenEvent, core.FinishedEvent)


class Engine:
    """Owns the core and the generations in it. All methods run on one event loop."""

    def __init__(self, config: SchedulerConfig, workers: list[WorkerClient]) -> None:
        self._workers = workers
        self._scheduler = Scheduler(config.max_num_seqs, config.max_num_batched_tokens, config.priority_aging)
        self._max_waiting = config.max_waiting
        self._requests: dict[str, ActiveRequest] = {}
        self._work = [asyncio.Event() for _ in workers]
        self.pool = WorkerPool()
        self.is_fenced = False
        # Set whenever `is_ready` may have changed.
        self.readiness_changed = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """A worker takes new work, and no later scheduler has taken the pool over."""
        states = self._scheduler.workers.values()
        return not self.is_fenced and any(not state.draining for state in states)

    async def run(self) -> None:
        """Serves every worker until cancelled, or until a later scheduler has one: the others are its too."""
        try:
            async with asyncio.TaskGroup() as group:
                for index in range(len(self._workers)):
                    group.create_task(self._serve_worker(index))
        except* FencedError as errors:
            self.is_fenced = True
            _log.error("fenced", why=[str(error) for error in errors.exceptions])

    # Requests.

    def check_ready(self) -> None:
        """Raises NO_WORKER while no new work can be taken."""
        if not self.is_ready:
            why = "a later scheduler took the workers over" if self.is_fenced else "no worker is ready"
            raise ServiceError(Reason.NO_WORKER, why, retry_after_seconds=1.0)

    def check_room(self) -> None:
        """Raises QUEUE_FULL if as many wait as may."""
        num_waiting = len(self._waiting_requests())
        if num_waiting >= self._max_waiting and not self._has_idle_place():
            message = f"{num_waiting} requests wait; allowed: {self._max_waiting}"
            raise ServiceError(Reason.QUEUE_FULL, message, retry_after_seconds=1.0)

    def submit(self, active: ActiveRequest) -> None:
        """Takes a checked request into the queue."""
        self._requests[active.request.generation_id] = active
        active.admitted()
        self._scheduler.add_request(active.request)
        self._wake()

    def abort(self, generation_id: str, output_index: int | None = None) -> int:
        """Ends a request or one output; how many live outputs that were. Unknown ones are none."""
        active = self._requests.get(generation_id)
        if active is None:
            return 0
        events = self._scheduler.abort(active.request, output_index)
        self._publish(events)
        self._wake()
        return len(events)

    def status(self) -> scheduler_pb2.GetStatusResponse:
        """The load, worker by worker."""
        response = scheduler_pb2.GetStatusResponse(
            num_waiting=len(self._waiting_requests()), num_running=len(self._running_requests())
        )
        for index, client in enumerate(self._workers):
            status = response.workers.add(address=client.address)
            state = self._scheduler.workers.get(index)
            if state is not None:
                pool = state.kv_cache.block_pool
                status.ready = not state.draining
                status.num_running = len({sequence.request for sequence in state.running})
                status.num_live_blocks = pool.num_live
                status.num_cached_blocks = pool.num_cached
                status.num_free_blocks = pool.num_free
        return response

    # Workers.

    async def _serve_worker(self, worker: int) -> None:
        """Session after session. Raises FencedError."""
        client = self._workers[worker]
        while True:
            try:
                self._attach(worker, await client.open_session(partial(self.pool.add, worker)))
                watching = asyncio.create_task(self._watch_draining(worker))
                try:
                    await self._run_steps(worker)
                finally:
                    watching.cancel()
            except WorkerLostError as error:
                _log.warning("worker_lost", worker=client.address, why=str(error))
            finally:
                client.close()
                self._detach(worker)
            # A worker that ends every session at once must not keep this loop busy.
            await asyncio.sleep(RETRY_SECONDS)

    async def _run_steps(self, worker: int) -> None:
        """The engine loop; ends only with the session."""
        scheduler, client = self._scheduler, self._workers[worker]
        while True:
            output, events = scheduler.schedule(worker, monotonic())
            if output is None:
                self._publish(events)
                self._observe(worker)
                await self._wait_for_work(worker)
                continue
            # Built first: publishing may already end a request of the step.
            step = self._build_step(output)
            self._publish(events)
            result = await self._execute(client, output, step)
            self._publish(scheduler.update(output, result, monotonic()))
            self._observe(worker)
            if scheduler.num_waiting:
                self._wake()  # what the step queued may start on a worker that sleeps

    def _build_step(self, output: core.SchedulerOutput) -> worker_pb2.Step:
        block_size = self._scheduler.workers[output.worker].kv_cache.block_size
        ids = {each.sequence.request.generation_id for each in output.scheduled}
        return build_step(output, block_size, {each: self._requests[each].sampling for each in ids})

    async def _execute(
        self, client: WorkerClient, output: core.SchedulerOutput, step: worker_pb2.Step
    ) -> core.ModelRunnerOutput:
        """Runs the step and times it. A worker that answers what was not asked is as good as lost."""
        start = monotonic()
        result = await client.execute(step)
        seconds = monotonic() - start
        try:
            parsed = parse_result(output, result, self.pool.vocab_size)
        except ValueError as error:
            raise WorkerLostError(f"malformed result: {error}") from None
        metrics.STEP_TIME.labels(client.address).observe(seconds)
        metrics.STEP_OVERHEAD.labels(client.address).observe(seconds - parsed.worker_seconds)
        metrics.STEP_SEQUENCES.labels(client.address).observe(len(output.scheduled))
        metrics.STEP_TOKENS.labels(client.address).observe(output.num_tokens)
        return parsed

    async def _wait_for_work(self, worker: int) -> None:
        """Until there may be something to do, or the session is lost (the next step then says so)."""
        client, work = self._workers[worker], self._work[worker]
        work.clear()
        waiting = asyncio.ensure_future(work.wait())
        lost = asyncio.ensure_future(client.wait_until_lost())
        try:
            await asyncio.wait((waiting, lost), return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                await client.raise_lost()
        finally:
            waiting.cancel()
            lost.cancel()

    async def _watch_draining(self, worker: int) -> None:
        """A worker that turns NOT_SERVING gets no new work; what runs there goes on."""
        async for is_serving in self._workers[worker].watch_health():
            self._scheduler.workers[worker].draining = not is_serving
            self.readiness_changed.set()
            self._wake()

    def _attach(self, worker: int, opened: worker_pb2.SessionOpened) -> None:
        """Every block of the worker is empty for us."""
        info, address = opened.model_info, self._workers[worker].address
        identity = f"{info.model_fingerprint} {info.tokenizer_fingerprint}"
        kv_cache = KVCacheManager(info.num_blocks, info.block_size, identity)
        self._scheduler.add_worker(worker, kv_cache, info.max_num_batched_tokens)
        metrics.WORKER_READY.labels(address).set(1)
        self.readiness_changed.set()
        self._observe(worker)
        _log.info(
            "worker_ready",
            worker=address,
            model=info.model,
            num_blocks=info.num_blocks,
            weight_dtype=info.weight_dtype,
        )
        if len(dtypes := self.pool.weight_dtypes) > 1:
            why = "the same request may get another answer on another worker; set --dtype"
            _log.warning("weight_dtypes_differ", weight_dtypes=sorted(dtypes), why=why)

    def _detach(self, worker: int) -> None:
        """The session is gone: its sequences move, or their requests fail."""
        self.pool.remove(worker)
        metrics.WORKER_READY.labels(self._workers[worker].address).set(0)
        if worker in self._scheduler.workers:
            self._publish(self._scheduler.remove_worker(worker))
        self.readiness_changed.set()
        self._wake()

    # What happened.

    def _publish(self, events: Iterable[core.Event]) -> None:
        """To each request's stream; a request whose reader is too slow, or that has ended, leaves."""
        now = monotonic()
        for event in events:
            request = event.sequence.request if isinstance(event, _OF_SEQUENCE) else event.request
            active = self._requests.get(request.generation_id)
            if active is None:
                continue  # it left earlier in this very list
            if not active.publish(event, now):
                self._scheduler.abort(request)
            if active.is_over:
                del self._requests[request.generation_id]

    def _observe(self, worker: int) -> None:
        """The gauges that a step may change."""
        state, address = self._scheduler.workers[worker], self._workers[worker].address
        pool = state.kv_cache.block_pool
        for name, count in (("live", pool.num_live), ("cached", pool.num_cached), ("free", pool.num_free)):
            metrics.BLOCKS.labels(address, name).set(count)
        metrics.REQUESTS.labels("waiting").set(len(self._waiting_requests()))
        metrics.REQUESTS.labels("running").set(len(self._running_requests()))

    def _running_requests(self) -> set[Request]:
        """Those with an output in a running batch."""
        return {each.request for state in self._scheduler.workers.values() for each in state.running}

    def _waiting_requests(self) -> set[Request]:
        """Those of which nothing runs."""
        return {each.request for each in self._scheduler.waiting} - self._running_requests()

    def _has_idle_place(self) -> bool:
        return self._scheduler.num_waiting == 0 and self._scheduler.has_place()

    def _wake(self) -> None:
        for work in self._work:
            work.set()
