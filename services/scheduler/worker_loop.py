"""One worker's loop: sessions, and the steps of each.

The loop never waits for a caller: a step's results are published into each request's OutputStream, which its
caller reads while the worker computes the next step.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic

from triptych.v1 import worker_pb2

from services.scheduler import metrics
from services.scheduler.active_request import ActiveRequests
from services.scheduler.core.kv_cache_manager import KVCacheManager
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from services.scheduler.step import Logprobs, build_step, parse_result
from services.scheduler.worker_client import RETRY_SECONDS, WorkerClient, WorkerLostError
from services.scheduler.worker_pool import WorkerPool
from shared.log import get_logger

_log = get_logger()


class WorkerLoop:
    """Runs on the engine's event loop, beside those of the other workers."""

    def __init__(
        self,
        worker: int,
        client: WorkerClient,
        scheduler: Scheduler[Logprobs],
        pool: WorkerPool,
        requests: ActiveRequests,
        on_change: Callable[[], None],
    ) -> None:
        """`worker` is its number in the core. `on_change` is called when sequences were queued that another
        worker may start, and when this worker comes, drains or is lost."""
        self._worker = worker
        self._client = client
        self._scheduler = scheduler
        self._pool = pool
        self._requests = requests
        self._on_change = on_change
        self._work = asyncio.Event()

    @property
    def address(self) -> str:
        return self._client.address

    def wake(self) -> None:
        """There may be something to schedule."""
        self._work.set()

    async def run(self) -> None:
        """Session after session. Raises FencedError."""
        while True:
            try:
                self._attach(await self._client.open_session(partial(self._pool.add, self._worker)))
                watching = asyncio.create_task(self._watch_draining())
                try:
                    await self._run_steps()
                finally:
                    watching.cancel()
            except WorkerLostError as error:
                _log.warning("worker_lost", worker=self.address, why=str(error))
            finally:
                self._client.close()
                self._detach()
            # A worker that ends every session at once must not keep this loop spinning.
            await asyncio.sleep(RETRY_SECONDS)

    async def _run_steps(self) -> None:
        """Schedule, execute, update, publish. Raises WorkerLostError or FencedError; never returns."""
        while True:
            output, events = self._scheduler.schedule(self._worker, monotonic())
            if output is None:
                assert not events, "nothing is scheduled, so nothing has happened"
                self._observe()
                await self._wait_for_work()
                continue
            # Built first: publishing may end a request of the step.
            step = build_step(output, self._pool.block_size, self._requests.sampling_of)
            self._requests.publish(events)
            result = await self._execute(output, step)
            self._requests.publish(self._scheduler.update(output, result, monotonic()))
            self._observe()
            if self._scheduler.has_waiting:
                self._on_change()

    async def _execute(self, output: SchedulerOutput, step: worker_pb2.Step) -> ModelRunnerOutput[Logprobs]:
        """Runs the step and times it. A worker that returns a malformed result is treated as lost."""
        start = monotonic()
        result = await self._client.execute(step)
        seconds = monotonic() - start
        try:
            parsed = parse_result(output, result, self._pool.vocab_size)
        except ValueError as error:
            raise WorkerLostError(f"malformed result: {error}") from None
        metrics.STEP_TIME.labels(self.address).observe(seconds)
        metrics.STEP_OVERHEAD.labels(self.address).observe(seconds - parsed.worker_seconds)
        metrics.STEP_SEQUENCES.labels(self.address).observe(len(output.scheduled))
        metrics.STEP_TOKENS.labels(self.address).observe(output.num_tokens)
        return parsed

    async def _wait_for_work(self) -> None:
        """Until there may be something to schedule. Raises WorkerLostError or FencedError."""
        self._work.clear()
        waiting = asyncio.ensure_future(self._work.wait())
        lost = asyncio.ensure_future(self._client.wait_until_lost())
        try:
            await asyncio.wait((waiting, lost), return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                await self._client.raise_lost()
        finally:
            waiting.cancel()
            lost.cancel()

    async def _watch_draining(self) -> None:
        """A worker that turns NOT_SERVING gets no new work; what runs there continues."""
        async for is_serving in self._client.watch_health():
            self._scheduler.set_draining(self._worker, not is_serving)
            self._observe()
            self._on_change()

    def _attach(self, opened: worker_pb2.SessionOpened) -> None:
        """The session is open; every block of the worker is empty for us."""
        info = opened.model_info
        identity = f"{info.model_fingerprint} {info.tokenizer_fingerprint}"
        kv_cache = KVCacheManager(info.num_blocks, info.block_size, identity)
        self._scheduler.add_worker(self._worker, kv_cache, info.max_num_batched_tokens)
        self._observe()
        self._on_change()
        _log.info(
            "worker_ready",
            worker=self.address,
            model=info.model,
            num_blocks=info.num_blocks,
            weight_dtype=info.weight_dtype,
        )
        if len(dtypes := self._pool.weight_dtypes) > 1:
            why = "the same request may get another answer on another worker; set --dtype"
            _log.warning("weight_dtypes_differ", weight_dtypes=sorted(dtypes), why=why)

    def _detach(self) -> None:
        """The session has ended: its sequences migrate, or their requests fail."""
        if self._worker in self._pool:
            self._pool.remove(self._worker)
            self._requests.publish(self._scheduler.remove_worker(self._worker))
        self._observe()
        self._on_change()

    def _observe(self) -> None:
        metrics.observe_load(self.address, self._worker, self._scheduler.load())
        metrics.MAX_MODEL_LEN.set(self._pool.max_model_len)
