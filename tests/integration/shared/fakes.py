"""A server of ours around handlers of a test, and a channel of ours to it, over real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from prometheus_client import REGISTRY
from triptych.v1 import scheduler_pb2, scheduler_pb2_grpc

from shared.config import ServiceConfig, TlsConfig
from shared.grpc_client import create_channel
from shared.grpc_server import GrpcServer
from shared.wire import Address

SERVICE = "triptych.v1.SchedulerService"
GENERATE, GET_STATUS, ABORT = (f"/{SERVICE}/{name}" for name in ("Generate", "GetStatus", "AbortRequest"))
PLAIN = TlsConfig()


@dataclass
class Serving:
    """What a test needs of a running server."""

    server: GrpcServer
    address: Address
    channel: grpc.aio.Channel
    stub: Any
    # Ends when the server has drained.
    running: "asyncio.Task[None]"


@asynccontextmanager
async def serving(
    *, tls: TlsConfig = PLAIN, config: dict[str, Any] | None = None, **handlers: Callable[..., Any]
) -> AsyncIterator[Serving]:
    """SchedulerService with these handlers, by name, each of (request, context). `tls`: the client's."""
    servicer = scheduler_pb2_grpc.SchedulerServiceServicer()
    for name, handler in handlers.items():
        setattr(servicer, name, handler)
    server = GrpcServer(ServiceConfig(listen=Address("127.0.0.1", 0), **(config or {})), [SERVICE])
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, server.server)
    address = await server.start()
    await server.set_ready(SERVICE, True)
    running = asyncio.create_task(server.run_until_signal())
    try:
        async with create_channel(address, tls) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            yield Serving(server, address, channel, stub, running)
    finally:
        running.cancel()
        await server.close()


async def get_status(request: Any, context: Any) -> scheduler_pb2.GetStatusResponse:
    """A handler that answers."""
    return scheduler_pb2.GetStatusResponse(num_waiting=3)


def event(text: str = "") -> scheduler_pb2.GenerateResponse:
    """Something to stream."""
    return scheduler_pb2.GenerateResponse(admitted=scheduler_pb2.RequestAdmitted(generation_id=text))


async def failure_of(call: Any) -> grpc.aio.AioRpcError:
    """The error that a call ends with, after whatever it streams. Fails if it ends well."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call ended well")


def metric(name: str, **labels: str) -> float:
    """The value now; 0 if there is none yet."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Waits for it. Fails if it takes longer."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 what is waited for is in another thread, or has no event
            await asyncio.sleep(0.01)
