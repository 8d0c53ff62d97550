"""The scheduler as its process runs it, over real gRPC, before fake workers. All in this process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from triptych.v1 import scheduler_pb2, scheduler_pb2_grpc

from services.scheduler.config import SchedulerConfig
from services.scheduler.serve import SERVICE_NAME, SchedulerService, serving
from shared.wire import CLIENT_OPTIONS, Address
from tests.integration.scheduler.client import Answer, collect, until
from tests.support.fake_worker import FakeWorker


@dataclass
class Rig:
    """A scheduler and a caller's channel to it."""

    service: SchedulerService
    channel: grpc.aio.Channel
    workers: tuple[FakeWorker, ...]

    def __post_init__(self) -> None:
        self.stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)

    async def generate(self, request: scheduler_pb2.GenerateRequest) -> Answer:
        """The whole answer; raises its error."""
        return await collect(self.stub.Generate(request))

    @property
    def status(self) -> scheduler_pb2.GetStatusResponse:
        """GetStatus, at once."""
        return self.service.engine.status()

    async def is_ready(self) -> bool:
        """What health says."""
        request = health_pb2.HealthCheckRequest(service=SERVICE_NAME)
        response = await self.health.Check(request)
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    async def until_ready(self, num_workers: int = 1) -> None:
        """Until so many workers are ready, and health says so."""
        await until(lambda: sum(each.ready for each in self.status.workers) >= num_workers)
        await asyncio.sleep(0)
        assert await self.is_ready()

    @property
    def is_idle(self) -> bool:
        """Nothing waits, runs or holds a block."""
        status = self.status
        num_live = sum(each.num_live_blocks for each in status.workers)
        return status.num_waiting == status.num_running == num_live == 0


MakeRig = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def make_rig() -> AsyncIterator[MakeRig]:
    """make_rig(worker, …, **flags): workers are started unless they run; in the end everything must be idle,
    no worker have seen anything that the contract forbids, and no task have failed."""
    async with AsyncExitStack() as stack:
        rigs: list[Rig] = []

        async def make(*workers: FakeWorker, num_ready: int | None = None, **flags: Any) -> Rig:
            for worker in workers:
                if worker.address.port == 0:
                    await stack.enter_async_context(worker)
            config = SchedulerConfig(
                listen=Address("127.0.0.1", 0),
                worker=tuple(worker.address for worker in workers),
                drain_seconds=0,
                **flags,
            )
            service = await stack.enter_async_context(serving(config))
            stack.push_async_callback(_shut_down, service)
            channel = grpc.aio.insecure_channel(str(service.address), options=CLIENT_OPTIONS)
            await stack.enter_async_context(channel)
            rig = Rig(service, channel, workers)
            rigs.append(rig)
            await until(lambda: sum(each.ready for each in rig.status.workers) >= (num_ready or 0))
            if num_ready is None:
                await rig.until_ready(len(workers))
            return rig

        yield make
        for rig in rigs:
            await _check_is_clean(rig)


async def _check_is_clean(rig: Rig) -> None:
    for worker in rig.workers:
        worker.release()
        assert worker.violations == []
    await until(lambda: rig.is_idle)
    rig.service.engine.check_integrity()
    for task in rig.service.tasks:
        assert not task.done() or task.exception() is None


async def _shut_down(service: SchedulerService) -> None:
    service.server.stop()
    await service.server.run_until_signal()
    await service.server.close()
