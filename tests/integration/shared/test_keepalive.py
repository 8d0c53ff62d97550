"""Pings on a quiet stream are tolerated (G2), and find a peer that is gone without a word."""

import asyncio
from typing import Any

import grpc
import pytest
from triptych.v1 import scheduler_pb2, scheduler_pb2_grpc

from shared import grpc_client, grpc_server, wire
from shared.wire import client_options, server_options
from tests.integration.shared.fakes import PLAIN, event, failure_of, get_status, serving
from tests.support.relay import relayed

# gRPC pings at most once a second.
INTERVAL = 1.0
TIMEOUT = 1.5
TOLERANCE_KEY = "grpc.http2.min_ping_interval_without_data_ms"
POPULAR_WRONG_KEY = "grpc.http2.min_recv_ping_interval_without_data_ms"


@pytest.fixture(autouse=True)
def _short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "KEEPALIVE_TIMEOUT_SECONDS", TIMEOUT)
    monkeypatch.setattr(grpc_client, "CLIENT_OPTIONS", client_options(INTERVAL))
    monkeypatch.setattr(grpc_server, "SERVER_OPTIONS", server_options(INTERVAL))


async def idle_stream(request: Any, context: Any) -> Any:
    yield event("first")
    await asyncio.sleep(4 * INTERVAL)
    yield event("last")


async def idle_call(request: Any, context: Any) -> scheduler_pb2.GetStatusResponse:
    await asyncio.sleep(4 * INTERVAL)
    return scheduler_pb2.GetStatusResponse()


async def test_whatever_is_idle_for_several_intervals_survives() -> None:
    async def stream() -> None:
        async with serving(Generate=idle_stream) as fake:
            received = [each async for each in fake.stub.Generate(scheduler_pb2.GenerateRequest())]
            assert [each.admitted.generation_id for each in received] == ["first", "last"]

    async def call() -> None:
        async with serving(GetStatus=idle_call) as fake:
            await fake.stub.GetStatus(scheduler_pb2.GetStatusRequest())

    async def connection() -> None:
        async with serving(GetStatus=get_status) as fake:
            await fake.stub.GetStatus(scheduler_pb2.GetStatusRequest())
            await asyncio.sleep(4 * INTERVAL)
            assert fake.channel.get_state() is grpc.ChannelConnectivity.READY

    await asyncio.gather(stream(), call(), connection())


async def test_with_the_popular_key_a_quiet_stream_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above can fail."""

    async def quiet(request: Any, context: Any) -> Any:
        yield event("first")
        await asyncio.Event().wait()

    wrong = [
        (POPULAR_WRONG_KEY if key == TOLERANCE_KEY else key, value) for key, value in server_options(INTERVAL)
    ]
    monkeypatch.setattr(grpc_server, "SERVER_OPTIONS", wrong)
    async with serving(Generate=quiet) as fake, asyncio.timeout(20 * INTERVAL):
        error = await failure_of(fake.stub.Generate(scheduler_pb2.GenerateRequest()))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == "Too many pings"


class Cable:
    """Between a client and a server; unplugged, it passes nothing on and closes nothing."""

    def __init__(self) -> None:
        self.is_plugged = asyncio.Event()
        self.is_plugged.set()

    async def pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction."""
        while data := await reader.read(65536):
            await self.is_plugged.wait()
            writer.write(data)


async def test_both_ends_find_out_that_the_other_fell_silent_within_interval_and_timeout() -> None:
    cleaned_up = asyncio.Event()

    async def endless(request: Any, context: Any) -> Any:
        try:
            yield event("first")
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    cable = Cable()
    async with (
        serving(Generate=endless) as fake,
        relayed(fake.address, requests=cable.pipe, answers=cable.pipe) as address,
        grpc_client.create_channel(address, PLAIN) as channel,
    ):
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        events = aiter(stub.Generate(scheduler_pb2.GenerateRequest()))
        await anext(events)
        cable.is_plugged.clear()
        async with asyncio.timeout(INTERVAL + TIMEOUT + 2):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(events)
            await cleaned_up.wait()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
