"""Render's side of the connection to the scheduler: calls, and what is known of its state and limits."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from time import monotonic
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from triptych.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2

from shared.errors import Reason, ServiceError, peer_error
from shared.log import get_logger

SERVICE_NAME = "triptych.v1.SchedulerService"

# A poll of the scheduler, and an abort, fail after this.
_CALL_SECONDS = 5.0
# Between two polls; the first ones of a scheduler that is not ready come faster.
_POLL_SECONDS = 1.0
_FIRST_POLL_SECONDS = 0.05

_log = get_logger()


async def _ignore(_ready: bool) -> None:
    pass


class SchedulerClient:
    """Calls one scheduler, and polls its health and limits once a second."""

    def __init__(
        self, channel: grpc.aio.Channel, on_ready_change: Callable[[bool], Awaitable[None]] = _ignore
    ) -> None:
        """The channel stays the caller's to close."""
        self._scheduler: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)
        self._on_ready_change = on_ready_change
        self._watching: asyncio.Task[None] | None = None
        # At the last poll the scheduler said SERVING and described its model.
        self.is_ready = False
        # Kept when the scheduler goes away: the best guess of what it comes back with.
        self.model_info: types_pb2.ModelInfo | None = None

    def start(self) -> None:
        """Starts polling."""
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stops polling."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching

    async def generate(
        self, request: scheduler_pb2.GenerateRequest, deadline: float | None
    ) -> AsyncGenerator[scheduler_pb2.GenerateResponse, None]:
        """The generation's events. Closing the generator cancels the call. deadline: on time.monotonic.

        Raises ServiceError: the scheduler's own as it is; SCHEDULER_LOST, DEADLINE or MESSAGE_TOO_LARGE where
        the scheduler could not say why the call failed.
        """
        timeout = None if deadline is None else max(0.0, deadline - monotonic())
        call = self._scheduler.Generate(request, timeout=timeout)
        try:
            async for event in call:
                yield event
        except grpc.aio.AioRpcError as error:
            raise peer_error(error.trailing_metadata()) or _connection_error(error) from error
        finally:
            call.cancel()

    async def abort(self, generation_id: str, output_index: int) -> None:
        """Ends one output. A failure is no error here: the generation's own call shows what is wrong."""
        # Set also if it is 0: unset would end all outputs.
        request = scheduler_pb2.AbortRequestRequest(generation_id=generation_id, output_index=output_index)
        try:
            await self._scheduler.AbortRequest(request, timeout=_CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            _log.warning("abort_failed", code=error.code().name, generation_id=generation_id)

    async def _watch(self) -> None:
        pause = _FIRST_POLL_SECONDS
        while True:
            is_ready = await self._poll()
            if is_ready != self.is_ready:
                self.is_ready = is_ready
                pause = _FIRST_POLL_SECONDS
                _log.info("scheduler_ready" if is_ready else "scheduler_not_ready")
                await self._on_ready_change(is_ready)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS)

    async def _poll(self) -> bool:
        """Whether the scheduler is ready; refreshes what is known of its model."""
        try:
            health = await self._health.Check(
                health_pb2.HealthCheckRequest(service=SERVICE_NAME), timeout=_CALL_SECONDS
            )
            if health.status != health_pb2.HealthCheckResponse.SERVING:
                return False
            request = scheduler_pb2.SchedulerServiceGetModelInfoRequest()
            response = await self._scheduler.GetModelInfo(request, timeout=_CALL_SECONDS)
        except grpc.aio.AioRpcError:
            return False
        self.model_info = response.model_info
        return True


def _connection_error(error: grpc.aio.AioRpcError) -> ServiceError:
    """What a failed call means where the scheduler itself did not say why."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServiceError(Reason.DEADLINE, "the deadline passed before the request was done")
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return ServiceError(Reason.MESSAGE_TOO_LARGE, f"between renderer and scheduler: {error.details()}")
    return scheduler_lost(f"{error.code().name}: {error.details()}")


def scheduler_lost(detail: str) -> ServiceError:
    """The error for an output that cannot be completed because the connection broke."""
    return ServiceError(Reason.SCHEDULER_LOST, f"the connection to the scheduler broke ({detail})")
