"""What render knows of its scheduler, over real gRPC."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from triptych.v1 import scheduler_pb2_grpc, types_pb2

from services.render.frontend.scheduler_client import SERVICE_NAME, SchedulerClient
from tests.support.fake_scheduler import FakeScheduler, Generation, Response

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def no_script(_generation: Generation) -> AsyncIterator[Response]:
    raise NotImplementedError
    yield


@dataclass
class Watched:
    """A scheduler whose health a test sets, and the changes that its client saw."""

    client: SchedulerClient
    health: health.aio.HealthServicer
    server: grpc.aio.Server
    changes: "asyncio.Queue[bool]" = field(default_factory=asyncio.Queue)

    async def next_change(self) -> bool:
        async with asyncio.timeout(5):
            return await self.changes.get()


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    server = grpc.aio.server()
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    scheduler = FakeScheduler(no_script, types_pb2.ModelInfo(model="m", max_model_len=99))
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await health_servicer.set(SERVICE_NAME, NOT_SERVING)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        changes: asyncio.Queue[bool] = asyncio.Queue()
        client = SchedulerClient(channel, changes.put)
        client.start()
        yield Watched(client, health_servicer, server, changes)
        await client.close()
    await server.stop(None)


async def test_a_scheduler_is_ready_while_it_serves(watched: Watched) -> None:
    await asyncio.sleep(0.2)
    assert not watched.client.is_ready
    assert watched.client.model_info is None
    await watched.health.set(SERVICE_NAME, SERVING)
    assert await watched.next_change()
    assert watched.client.model_info == types_pb2.ModelInfo(model="m", max_model_len=99)
    await watched.health.set(SERVICE_NAME, NOT_SERVING)
    assert not await watched.next_change()


async def test_a_scheduler_that_goes_away_leaves_its_limits(watched: Watched) -> None:
    await watched.health.set(SERVICE_NAME, SERVING)
    assert await watched.next_change()
    await watched.server.stop(None)
    assert not await watched.next_change()
    assert watched.client.model_info is not None


async def test_a_failing_abort_raises_nothing(watched: Watched) -> None:
    await watched.server.stop(None)
    await watched.client.abort("generation-1", 0)


async def test_a_client_that_was_never_started_can_be_closed() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        await SchedulerClient(channel).close()
