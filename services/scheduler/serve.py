"""The scheduler process."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from triptych.v1 import scheduler_pb2, scheduler_pb2_grpc

from services.scheduler.config import SchedulerConfig
from services.scheduler.engine import Engine
from services.scheduler.servicer import SchedulerServicer
from services.scheduler.worker_client import WorkerClient
from shared.grpc_client import create_channel
from shared.grpc_server import GrpcServer, end_process
from shared.log import configure_logging, get_logger, log_start
from shared.metrics import serve_metrics
from shared.wire import Address

SERVICE_NAME = scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"].full_name

_log = get_logger()


def run(config: SchedulerConfig) -> None:
    """Runs until a signal. Raises ConfigError for what the user can fix."""
    configure_logging("scheduler", config.log_level)
    log_start(config)
    asyncio.run(_serve(config))


@dataclass
class SchedulerService:
    engine: Engine
    server: GrpcServer
    address: Address
    # The engine's loop, and what reports its readiness.
    tasks: tuple["asyncio.Task[None]", ...]


@asynccontextmanager
async def serving(config: SchedulerConfig) -> AsyncIterator[SchedulerService]:
    """Listens and connects to its workers; the caller awaits `server.run_until_signal`."""
    scheduler_id = f"{socket.gethostname()}:{config.listen.port}"
    generation = time.time_ns() // 1000
    channels = [create_channel(address, config) for address in config.worker]
    clients = [
        WorkerClient(address, channel, scheduler_id, generation)
        for address, channel in zip(config.worker, channels, strict=True)
    ]
    engine = Engine(config, clients)
    server = GrpcServer(config, [SERVICE_NAME])
    servicer = SchedulerServicer(engine, server.drain, config.output_buffer_bytes)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, server.server)
    address = await server.start()
    tasks = (asyncio.create_task(engine.run()), asyncio.create_task(_follow_readiness(engine, server)))
    try:
        yield SchedulerService(engine, server, address, tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in channels:
            await channel.close()


async def _serve(config: SchedulerConfig) -> None:
    metrics_address = serve_metrics(config.metrics_address)
    async with serving(config) as service:
        _log.info("listening", address=str(service.address), metrics=str(metrics_address))
        for task in service.tasks:
            task.add_done_callback(_exit_on_bug)
        await service.server.run_until_signal()
    end_process()


async def _follow_readiness(engine: Engine, server: GrpcServer) -> None:
    while True:
        engine.readiness_changed.clear()
        await server.set_ready(SERVICE_NAME, engine.is_ready)
        await engine.readiness_changed.wait()


def _exit_on_bug(task: "asyncio.Task[None]") -> None:
    """Without its loop every request would hang: the process logs why and exits, and calls break."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("bug", error=repr(error), exc_info=error)
        os._exit(1)
