"""The way down (G3): refuse new work, let running work go on to the limit, then end it with an error."""

import asyncio
import os
import signal
from collections import Counter
from time import monotonic
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from triptych.v1 import render_pb2, render_pb2_grpc, scheduler_pb2

from shared.errors import Reason, reason_in
from shared.wire import CLIENT_OPTIONS
from tests.integration.shared.fakes import GENERATE, event, failure_of, get_status, metric, serving, until
from tests.support.processes import ServiceProcess, started
from tests.support.relay import relayed

REQUEST = scheduler_pb2.GenerateRequest()


async def endless(request: Any, context: Any) -> Any:
    while True:
        yield event()
        await asyncio.sleep(0.01)


async def test_after_sigterm_new_calls_are_refused_and_running_ones_go_on() -> None:
    finish = asyncio.Event()

    async def generate(request: Any, context: Any) -> Any:
        yield event("first")
        await finish.wait()
        yield event("last")

    async with serving(Generate=generate, GetStatus=get_status) as fake:
        call = fake.stub.Generate(REQUEST)
        events = aiter(call)
        await anext(events)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: fake.server.drain.draining)
        for refused in (fake.stub.Generate(REQUEST), fake.stub.GetStatus(scheduler_pb2.GetStatusRequest())):
            error = await failure_of(refused)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert reason_in(error.trailing_metadata()) is Reason.DRAINING
        assert not fake.running.done()
        finish.set()
        assert (await anext(events)).admitted.generation_id == "last"
        assert await call.code() is grpc.StatusCode.OK
        await asyncio.wait_for(fake.running, 5)


async def test_an_idle_server_ends_at_once() -> None:
    async with serving(config={"drain_seconds": 60}) as fake:
        fake.server.stop()
        await asyncio.wait_for(fake.running, 2)


async def test_past_the_limit_a_stream_ends_with_an_error_never_as_a_clean_end() -> None:
    ended = asyncio.Event()

    async def generate(request: Any, context: Any) -> Any:
        try:
            async for each in endless(request, context):
                yield each
        finally:
            ended.set()

    before = metric("triptych_server_requests_total", method=GENERATE, code="UNAVAILABLE")
    async with serving(config={"drain_seconds": 0.3}, Generate=generate) as fake:
        call = fake.stub.Generate(REQUEST)
        failing = asyncio.ensure_future(failure_of(call))
        await until(lambda: len(fake.server.drain.calls) == 1)
        start = monotonic()
        fake.server.stop()
        error = await asyncio.wait_for(failing, 10)
        assert monotonic() - start >= 0.3
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert reason_in(error.trailing_metadata()) is Reason.DRAINING
        assert ended.is_set()
        await asyncio.wait_for(fake.running, 5)
    assert metric("triptych_server_requests_total", method=GENERATE, code="UNAVAILABLE") == before + 1


async def test_past_the_limit_streams_that_are_sending_end_with_the_error_too() -> None:
    """Most of them wait inside gRPC at that moment, which knows nothing of our status."""

    async def generate(request: Any, context: Any) -> Any:
        while True:
            yield event("x" * 4096)

    async with serving(config={"drain_seconds": 0.3}, Generate=generate) as fake:
        ends = [asyncio.ensure_future(failure_of(fake.stub.Generate(REQUEST))) for _ in range(20)]
        await until(lambda: len(fake.server.drain.calls) == 20)
        fake.server.stop()
        for error in await asyncio.gather(*ends):
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert reason_in(error.trailing_metadata()) is Reason.DRAINING


async def test_past_the_limit_a_call_without_an_answer_ends_with_an_error() -> None:
    async def hang(request: Any, context: Any) -> scheduler_pb2.GetStatusResponse:
        await asyncio.Event().wait()
        raise AssertionError("not reached")

    async with serving(config={"drain_seconds": 0.1}, GetStatus=hang) as fake:
        failing = asyncio.ensure_future(failure_of(fake.stub.GetStatus(scheduler_pb2.GetStatusRequest())))
        await until(lambda: len(fake.server.drain.calls) == 1)
        fake.server.stop()
        assert reason_in((await failing).trailing_metadata()) is Reason.DRAINING


async def test_past_the_limit_the_stream_of_a_reader_that_does_not_read_breaks_too() -> None:
    """Its handler waits inside gRPC, where no status can be sent any more."""
    ended = asyncio.Event()

    async def generate(request: Any, context: Any) -> Any:
        try:
            while True:
                yield event("x" * 65536)
        finally:
            ended.set()

    async with serving(config={"drain_seconds": 0.1}, Generate=generate) as fake:
        call = fake.stub.Generate(REQUEST)
        await asyncio.sleep(0.5)
        fake.server.stop()
        await asyncio.wait_for(fake.running, 5)
        await fake.server.close()  # in its place a process ends
        await asyncio.wait_for(ended.wait(), 2)
        assert (await failure_of(call)).code() is grpc.StatusCode.UNAVAILABLE


async def derender(service: ServiceProcess) -> Any:
    """An open stream of the render process, which waits for us."""
    channel = grpc.aio.insecure_channel(str(service.address))
    call = render_pb2_grpc.RenderServiceStub(channel).Derender()
    await call.write(render_pb2.DerenderRequest(params=render_pb2.DerenderParams()))
    return call


async def test_a_process_drains_on_sigterm_and_exits_with_0() -> None:
    with started("render", "--drain-seconds", "1") as render:
        render.wait_until_ready()
        call = await derender(render)
        await asyncio.sleep(0.3)
        render.send(signal.SIGTERM)
        await until(
            lambda: render.health("triptych.v1.RenderService") != health_pb2.HealthCheckResponse.SERVING
        )
        assert render.health("triptych.v1.RenderService") == health_pb2.HealthCheckResponse.NOT_SERVING
        assert render.health("") == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert reason_in(caught.value.trailing_metadata()) is Reason.DRAINING
        assert await asyncio.to_thread(render.wait) == 0
        assert [line["event"] for line in render.log][-2:] == ["draining", "drain_limit_reached"]


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_a_process_at_once(signal_number: signal.Signals) -> None:
    with started("render", "--drain-seconds", "60") as render:
        render.wait_until_ready()
        call = await derender(render)
        await asyncio.sleep(0.3)
        render.send(signal_number)
        await until(lambda: any(line["event"] == "draining" for line in render.log))
        assert render.process.poll() is None
        render.send(signal_number)
        assert await asyncio.to_thread(render.wait) == 128 + signal_number
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_calls_that_arrive_while_a_process_ends_are_unavailable_and_never_cancelled() -> None:
    """Those too that gRPC has accepted and our code has not seen yet: callers try UNAVAILABLE again."""
    codes: Counter[grpc.StatusCode] = Counter()

    async def call_on(address: str, ended: asyncio.Event) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = render_pb2_grpc.RenderServiceStub(channel)
            while not ended.is_set():
                try:
                    await stub.Tokenize(render_pb2.TokenizeRequest(text="x" * 500))
                    codes[grpc.StatusCode.OK] += 1
                except grpc.aio.AioRpcError as error:
                    codes[error.code()] += 1

    for i in range(3):
        with started("render") as render:
            render.wait_until_ready()
            ended = asyncio.Event()
            callers = [asyncio.ensure_future(call_on(str(render.address), ended)) for _ in range(16)]
            await until(lambda: codes[grpc.StatusCode.OK] > 50 * (i + 1), 60)  # noqa: B023 awaited here
            render.send(signal.SIGTERM)
            assert await asyncio.to_thread(render.wait) == 0
            ended.set()
            await asyncio.gather(*callers)
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}


async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """4 MB a second, once 100,000 bytes have come."""
    num_bytes = 0
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
        num_bytes += len(data)
        await asyncio.sleep(len(data) / 4e6 if num_bytes > 100_000 else 0)
    writer.close()


async def test_an_answer_that_is_on_its_way_to_a_slow_caller_arrives_whole() -> None:
    """Not all of it is with the kernel when the process is asked to end, nor with the caller when it is."""
    text = "a1 汉 " * 600_000
    with started("render", "--drain-seconds", "20", "--log-level", "debug") as render:
        render.wait_until_ready()
        async with (
            relayed(render.address, answers=slowly) as address,
            grpc.aio.insecure_channel(str(address), options=CLIENT_OPTIONS) as channel,
        ):
            stub = render_pb2_grpc.RenderServiceStub(channel)
            call = asyncio.ensure_future(stub.Tokenize(render_pb2.TokenizeRequest(text=text)))
            await until(lambda: any(line.get("event") == "served" for line in render.log))
            render.send(signal.SIGTERM)
            assert len((await call).token_ids) > len(text) / 4
            assert await asyncio.to_thread(render.wait) == 0
