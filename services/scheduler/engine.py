"""The engine: one loop per worker that schedules, executes, updates and publishes.

It never waits for a caller. What the core decides is published into each request's OutputStream, which its
caller reads while the worker computes the next step.
"""

import asyncio
from collections.abc import Iterable
from time import monotonic

from triptych.v1 import scheduler_pb2, worker_pb2

from services.scheduler.config import SchedulerConfig
from services.scheduler.core import scheduler_output as core
from services.scheduler.core.kv_cache_manager import KVCacheManager
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.generation import Generation
from services.scheduler.pool import Pool
from services.scheduler.step import build_step, parse_result
from services.scheduler.worker_client import FencedError, WorkerClient, WorkerLostError
from shared import metrics
from shared.errors import Reason, ServiceError
from shared.log import get_logger

_log = get_logger()
_OF_SEQUENCE = (core.TokenSampled, core.OutputFinished)


class Engine:
    """Owns the core and the generations in it. All methods run on one event loop."""

    def __init__(self, config: SchedulerConfig, workers: list[WorkerClient]) -> None:
        self._workers = workers
        self._scheduler = Scheduler(config.max_num_seqs, config.max_num_batched_tokens, config.priority_aging)
        self._max_waiting = config.max_waiting
        self._generations: dict[str, Generation] = {}
        self._work = [asyncio.Event() for _ in workers]
        self.pool = Pool()
        self.is_fenced = False
        # Set whenever `is_ready` may have changed.
        self.readiness_changed = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """A worker takes new work, and no later scheduler has taken the pool over."""
        states = self._scheduler.workers.values()
        return not self.is_fenced and any(not state.draining for state in states)

    async def run(self) -> None:
        """Serves every worker until cancelled."""
        await asyncio.gather(*(self._serve_worker(index) for index in range(len(self._workers))))

    # Requests.

    def check_room(self) -> None:
        """Raises the refusal that a new request gets now, if any."""
        if not self.is_ready:
            why = "a later scheduler took the workers over" if self.is_fenced else "no worker is ready"
            raise ServiceError(Reason.NO_WORKER, why, retry_after_seconds=1.0)
        if self._scheduler.num_waiting >= self._max_waiting and not self._has_idle_place():
            message = f"{self._scheduler.num_waiting} requests wait; allowed: {self._max_waiting}"
            raise ServiceError(Reason.QUEUE_FULL, message, retry_after_seconds=1.0)

    def submit(self, generation: Generation) -> None:
        """Takes a checked request into the queue."""
        self._generations[generation.request.generation_id] = generation
        generation.admitted()
        self._scheduler.add_request(generation.request)
        self._wake()

    def abort(self, generation_id: str, output_index: int | None = None) -> int:
        """Ends a request or one output; how many live outputs that were. Unknown ones are none."""
        generation = self._generations.get(generation_id)
        if generation is None:
            return 0
        events = self._scheduler.abort(generation.request, output_index)
        self._publish(events)
        self._wake()
        return len(events)

    def status(self) -> scheduler_pb2.GetStatusResponse:
        """The load, worker by worker."""
        response = scheduler_pb2.GetStatusResponse(
            num_waiting=self._scheduler.num_waiting, num_running=self._scheduler.num_running
        )
        for index, client in enumerate(self._workers):
            status = response.workers.add(address=client.address)
            state = self._scheduler.workers.get(index)
            if state is not None:
                pool = state.kv_cache.pool
                status.ready = True
                status.num_running = len(state.running)
                status.num_live_blocks = pool.num_live
                status.num_cached_blocks = pool.num_cached
                status.num_free_blocks = pool.num_free
        return response

    # Workers.

    async def _serve_worker(self, worker: int) -> None:
        """Session after session, for as long as this scheduler may have the worker."""
        client = self._workers[worker]
        while not self.is_fenced:
            try:
                self._attach(worker, await client.open_session())
                watching = asyncio.create_task(self._watch_draining(worker))
                try:
                    await self._run_steps(worker)
                finally:
                    watching.cancel()
            except WorkerLostError as error:
                _log.warning("worker_lost", worker=client.address, why=str(error))
            except FencedError as error:
                self.is_fenced = True
                _log.error("fenced", worker=client.address, why=str(error))
            finally:
                client.close()
                self._detach(worker)

    async def _run_steps(self, worker: int) -> None:
        """The engine loop; ends only with the session."""
        scheduler, client = self._scheduler, self._workers[worker]
        while True:
            output, events = scheduler.schedule(worker, monotonic())
            self._publish(events)
            if output is None:
                await self._wait_for_work(worker)
                continue
            result = await self._execute(worker, client, output)
            self._publish(scheduler.update(output, result, monotonic()))
            self._observe(worker)
            # Callers' writes and new requests have their turn also when the next result is already there.
            await asyncio.sleep(0)

    async def _execute(
        self, worker: int, client: WorkerClient, output: core.SchedulerOutput
    ) -> core.ModelRunnerOutput:
        """Runs the step and times it."""
        block_size = self._scheduler.workers[worker].kv_cache.block_size
        params = {key: generation.params for key, generation in self._generations.items()}
        start = monotonic()
        result = await client.execute(build_step(output, block_size, params))
        seconds = monotonic() - start
        parsed = parse_result(output, result)
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
        """Every block of the worker is empty for us. Raises WorkerLostError if it serves another model."""
        info, address = opened.model_info, self._workers[worker].address
        try:
            self.pool.add(worker, info)
        except ValueError as error:
            raise WorkerLostError(str(error)) from None
        identity = f"{info.model_fingerprint} {info.tokenizer_fingerprint}"
        kv_cache = KVCacheManager(info.num_blocks, info.block_size, identity)
        self._scheduler.add_worker(worker, kv_cache, info.max_num_batched_tokens)
        metrics.WORKER_READY.labels(address).set(1)
        self.readiness_changed.set()
        self._observe(worker)
        _log.info("worker_ready", worker=address, model=info.model, num_blocks=info.num_blocks)

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
            generation = self._generations.get(request.generation_id)
            if generation is None:
                continue  # it left earlier in this very list
            if not generation.publish(event, now):
                self._scheduler.abort(request)
            if request.is_finished:
                del self._generations[request.generation_id]

    def _observe(self, worker: int) -> None:
        """The gauges that a step may change."""
        state, address = self._scheduler.workers[worker], self._workers[worker].address
        pool = state.kv_cache.pool
        for name, count in (("live", pool.num_live), ("cached", pool.num_cached), ("free", pool.num_free)):
            metrics.BLOCKS.labels(address, name).set(count)
        metrics.REQUESTS.labels("waiting").set(self._scheduler.num_waiting)
        metrics.REQUESTS.labels("running").set(self._scheduler.num_running)

    def _has_idle_place(self) -> bool:
        return self._scheduler.num_waiting == 0 and self._scheduler.has_place()

    def _wake(self) -> None:
        for work in self._work:
            work.set()
