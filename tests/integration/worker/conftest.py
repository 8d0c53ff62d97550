"""The worker's own `_serve`, in this process, with the embedded model behind a gate."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from triptych.v1 import types_pb2, worker_pb2, worker_pb2_grpc

from services.worker import serve
from services.worker.backends.reference.backend import ReferenceBackend
from services.worker.checkpoint.loader import load_checkpoint
from services.worker.config import WorkerConfig
from services.worker.step.model_runner import ModelRunner
from shared.config import TlsConfig
from shared.demo_model import PATH as DEMO_MODEL
from shared.grpc_client import create_channel
from shared.wire import Address
from tests.support.processes import free_port

PLAIN = TlsConfig()


class GatedRunner:
    """Runs steps of the embedded model once the gate is open, and remembers which."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        # What a pass does, for tests that want something else.
        self.run: Callable[[worker_pb2.Step], worker_pb2.StepResult] = runner.execute
        self.gate = threading.Event()
        self.gate.set()
        self.is_in_pass = threading.Event()
        self.executed: list[int] = []

    def model_info(self) -> types_pb2.ModelInfo:
        """The embedded model's."""
        return self.runner.model_info()

    def execute(self, step: worker_pb2.Step) -> worker_pb2.StepResult:
        """On the model's thread."""
        self.is_in_pass.set()
        assert self.gate.wait(30)
        self.is_in_pass.clear()
        result = self.run(step)
        self.executed.append(step.step_id)
        return result


@dataclass
class Worker:
    """A running worker, and a client of it."""

    runner: GatedRunner
    address: Address
    stub: Any
    health_stub: Any
    serving: "asyncio.Task[None]"

    async def health(self, service: str = serve.SERVICE_NAME) -> int:
        """The status of a service."""
        request = health_pb2.HealthCheckRequest(service=service)
        return int((await self.health_stub.Check(request, wait_for_ready=True, timeout=10)).status)

    async def until_ready(self) -> None:
        """Until sessions open."""
        await self.until(health_pb2.HealthCheckResponse.SERVING)

    async def until(self, status: int) -> None:
        async with asyncio.timeout(30):
            while await self.health() != status:  # noqa: ASYNC110 no event
                await asyncio.sleep(0.01)


@pytest.fixture(scope="session")
def model_runner() -> ModelRunner:
    loaded = load_checkpoint(
        DEMO_MODEL, dtype=torch.float32, device=torch.device("cpu"), backend=ReferenceBackend()
    )
    return ModelRunner(
        loaded, num_blocks=64, block_size=16, max_num_batched_tokens=8192, max_model_len=1_000_000
    )


Load = Callable[[Callable[[], bool]], Any]
StartWorker = Callable[..., Awaitable[Worker]]


@pytest.fixture
async def start_worker(
    model_runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[StartWorker]:
    """`load` stands for loading the model: it gets what says whether to stop, and gives the runner."""
    channels: list[grpc.aio.Channel] = []
    tasks: list[asyncio.Task[None]] = []
    runner = GatedRunner(model_runner)

    async def start(tls: TlsConfig = PLAIN, load: Load | None = None, **config: Any) -> Worker:
        def loaded(_config: Any, _model_config: Any, is_stopping: Callable[[], bool]) -> Any:
            return runner if load is None else load(is_stopping)

        monkeypatch.setattr(serve, "_load", loaded)
        address = Address("127.0.0.1", free_port())
        metrics = Address("127.0.0.1", 0)
        tasks.append(
            asyncio.create_task(serve._serve(WorkerConfig(listen=address, metrics_listen=metrics, **config)))
        )
        channels.append(create_channel(address, tls))
        return Worker(
            runner,
            address,
            worker_pb2_grpc.WorkerServiceStub(channels[-1]),
            health_pb2_grpc.HealthStub(channels[-1]),
            tasks[-1],
        )

    yield start
    runner.gate.set()
    for channel in channels:
        await channel.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def worker(start_worker: StartWorker) -> Worker:
    started = await start_worker()
    await started.until_ready()
    return started
