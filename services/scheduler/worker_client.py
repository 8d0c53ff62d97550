"""One worker's session: opened once it answers, one step at a time, its loss detected in bounded time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from triptych.v1 import types_pb2, worker_pb2, worker_pb2_grpc

from shared.errors import Reason, reason_in
from shared.log import get_logger
from shared.wire import Address

RETRY_SECONDS = 0.5
OPEN_TIMEOUT_SECONDS = 10.0
WORKER_SERVICE = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name

_log = get_logger()


class WorkerLostError(Exception):
    """The session ended: the worker died, was stopped, or refused a step."""


class FencedError(Exception):
    """A scheduler that started later has the worker. Never try again."""


class WorkerClient:
    def __init__(
        self, address: Address, channel: grpc.aio.Channel, scheduler_id: str, generation: int
    ) -> None:
        self.address = str(address)
        self._stub = worker_pb2_grpc.WorkerServiceStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)
        self._scheduler_id = scheduler_id
        self._generation = generation
        self._session_id = ""
        self._call: Any = None
        self._next_step_id = 1
        self._reading: asyncio.Task[worker_pb2.ExecuteResponse] | None = None

    async def open_session(self, accept: Callable[[types_pb2.ModelInfo], None]) -> worker_pb2.SessionOpened:
        """Waits as long as it takes for a worker that `accept` does not refuse with a ValueError. Raises
        FencedError."""
        logged = ""
        while True:
            try:
                # (wait_for may lose a cancellation that comes as its task ends, before Python 3.12.)
                async with asyncio.timeout(OPEN_TIMEOUT_SECONDS):
                    opened = await self._try_open()
                accept(opened.model_info)
            except (WorkerLostError, TimeoutError, ValueError) as error:
                why = str(error) or "no answer"
                if why != logged:
                    _log.info("waiting_for_worker", worker=self.address, why=why)
                    logged = why
                self.close()
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return opened

    async def execute(self, step: worker_pb2.Step) -> worker_pb2.StepResult:
        """Runs one step; gives it its step_id. Raises WorkerLostError or FencedError."""
        step.step_id = self._next_step_id
        self._next_step_id += 1
        await self._send(worker_pb2.ExecuteRequest(step=step))
        response = await self._receive()
        if response.result.step_id != step.step_id:
            raise WorkerLostError(f"the answer to step {step.step_id} is for step {response.result.step_id}")
        return response.result

    async def wait_until_lost(self) -> None:
        """Returns once the session has ended, with no step outstanding; `raise_lost` then raises why."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        await asyncio.wait([self._reading])

    async def raise_lost(self) -> NoReturn:
        """After `wait_until_lost`. Raises WorkerLostError or FencedError."""
        await self._receive()
        raise WorkerLostError("the worker sent a result although no step was outstanding")

    async def watch_health(self) -> AsyncIterator[bool]:
        """Yields whether the worker takes new work, as that changes; ends with the connection."""
        request = health_pb2.HealthCheckRequest(service=WORKER_SERVICE)
        with suppress(grpc.aio.AioRpcError):  # the session detects a broken connection
            async for response in self._health.Watch(request):
                yield response.status == health_pb2.HealthCheckResponse.SERVING

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._call is not None:
            self._call.cancel()

    async def _try_open(self) -> worker_pb2.SessionOpened:
        self._call = self._stub.Execute()
        message = worker_pb2.OpenSession(
            scheduler_id=self._scheduler_id,
            generation=self._generation,
            resume_session_id=self._session_id,
        )
        await self._send(worker_pb2.ExecuteRequest(open=message))
        opened = (await self._receive()).opened
        self._session_id = opened.session_id
        self._next_step_id = 1
        return opened

    async def _send(self, message: worker_pb2.ExecuteRequest) -> None:
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._raise_end()

    async def _receive(self) -> worker_pb2.ExecuteResponse:
        reading = self._reading or asyncio.ensure_future(self._call.read())
        self._reading = None
        try:
            response = await reading
        except grpc.aio.AioRpcError:
            response = grpc.aio.EOF
        if response is grpc.aio.EOF:
            await self._raise_end()
        assert isinstance(response, worker_pb2.ExecuteResponse)
        return response

    async def _raise_end(self) -> None:
        code, details = await self._call.code(), await self._call.details()
        if reason_in(await self._call.trailing_metadata()) is Reason.FENCED:
            raise FencedError(details)
        raise WorkerLostError(f"{code.name}: {details}")
