"""When the caller goes away, in whatever phase, the handler's `finally` runs at once (G4)."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from triptych.v1 import scheduler_pb2, scheduler_pb2_grpc

from shared.grpc_client import create_channel
from tests.integration.shared.fakes import PLAIN, event, serving

# What is not cleaned up then never is: these handlers wait for ever.
SOON = 10.0
REQUEST = scheduler_pb2.GenerateRequest()
STATUS_REQUEST = scheduler_pb2.GetStatusRequest()


class Handlers:
    """Handlers that wait in one phase, and say when they began to and when they were cleaned up."""

    def __init__(self, phase: str) -> None:
        self._phase = phase
        self.waiting = asyncio.Event()
        self.cleaned_up = asyncio.Event()

    async def GetStatus(self, request: Any, context: Any) -> scheduler_pb2.GetStatusResponse:
        """Never answers."""
        try:
            self.waiting.set()
            await asyncio.Event().wait()
            raise AssertionError("not reached")
        finally:
            self.cleaned_up.set()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[scheduler_pb2.GenerateResponse]:
        """Waits before its first event, between two, or in a write that is not read."""
        try:
            if self._phase == "before the first event":
                self.waiting.set()
                await asyncio.Event().wait()
            yield event()
            self.waiting.set()
            while self._phase == "in a write":
                yield event("x" * 65536)
            await asyncio.Event().wait()
        finally:
            self.cleaned_up.set()


CLIENT = """
import grpc, time
from triptych.v1 import scheduler_pb2, scheduler_pb2_grpc
stub = scheduler_pb2_grpc.SchedulerServiceStub(grpc.insecure_channel("{address}"))
call = stub.Generate(scheduler_pb2.GenerateRequest())
time.sleep(60)
"""
PHASES = ["before the first event", "between events", "in a write"]


@pytest.mark.parametrize("phase", PHASES)
async def test_a_cancelled_stream_is_cleaned_up_at_once(phase: str) -> None:
    handlers = Handlers(phase)
    async with serving(Generate=handlers.Generate) as fake:
        call = fake.stub.Generate(REQUEST)
        await handlers.waiting.wait()
        await asyncio.sleep(0.2)
        call.cancel()
        await asyncio.wait_for(handlers.cleaned_up.wait(), SOON)
        await asyncio.sleep(0)
        assert not fake.server.drain.calls


@pytest.mark.parametrize("phase", PHASES)
async def test_a_stream_whose_deadline_passes_is_cleaned_up_at_once(phase: str) -> None:
    handlers = Handlers(phase)
    async with serving(Generate=handlers.Generate) as fake:
        call = fake.stub.Generate(REQUEST, timeout=0.5)
        await asyncio.wait_for(handlers.cleaned_up.wait(), 0.5 + SOON)
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_cancelled_call_is_cleaned_up_at_once() -> None:
    handlers = Handlers("")
    async with serving(GetStatus=handlers.GetStatus) as fake:
        call = fake.stub.GetStatus(STATUS_REQUEST)
        await handlers.waiting.wait()
        call.cancel()
        await asyncio.wait_for(handlers.cleaned_up.wait(), SOON)


async def test_a_cancelled_task_cancels_the_call_that_it_waits_for() -> None:
    handlers = Handlers("between events")
    async with serving(GetStatus=handlers.GetStatus) as fake:
        waiting = asyncio.ensure_future(fake.stub.GetStatus(STATUS_REQUEST))
        await handlers.waiting.wait()
        waiting.cancel()
        await asyncio.wait_for(handlers.cleaned_up.wait(), SOON)


async def test_a_closed_channel_ends_its_calls() -> None:
    handlers = Handlers("between events")
    async with serving(Generate=handlers.Generate) as fake:
        async with create_channel(fake.address, PLAIN) as channel:
            call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Generate(REQUEST)
            await handlers.waiting.wait()
        await asyncio.wait_for(handlers.cleaned_up.wait(), SOON)
        assert call.cancelled()


@pytest.mark.parametrize("phase", PHASES)
async def test_a_killed_client_process_is_noticed_at_once(phase: str) -> None:
    handlers = Handlers(phase)
    async with serving(Generate=handlers.Generate) as fake:
        arguments = ("-c", CLIENT.format(address=fake.address))
        client = await asyncio.create_subprocess_exec(sys.executable, *arguments)
        try:
            await asyncio.wait_for(handlers.waiting.wait(), 20)
            await asyncio.sleep(0.2)
        finally:
            client.kill()
            await client.wait()
        await asyncio.wait_for(handlers.cleaned_up.wait(), SOON)
