"""The way down of a real worker process."""

import asyncio
import signal
from time import monotonic

import grpc
from triptych.v1 import worker_pb2_grpc

from shared.errors import Reason
from tests.integration.worker.sessions import Session, step
from tests.support.processes import started

SLOW_WORKER = "tests.integration.worker.slow_worker"
DRAINING = (grpc.StatusCode.UNAVAILABLE, Reason.DRAINING)


async def test_sigterm_of_an_idle_worker_ends_its_session_and_the_process_quickly() -> None:
    with started("worker") as worker:
        worker.wait_until_ready()
        async with grpc.aio.insecure_channel(str(worker.address)) as channel:
            session = Session(worker_pb2_grpc.WorkerServiceStub(channel))
            await session.open()
            await session.execute(step(1))
            start = monotonic()
            worker.send(signal.SIGTERM)
            assert await session.end() == DRAINING
        assert await asyncio.to_thread(worker.wait) == 0
        assert monotonic() - start < 4


def test_sigterm_while_the_model_loads_ends_the_process_quickly() -> None:
    with started("worker") as worker:
        start = monotonic()
        assert worker.stop() == 0
        assert monotonic() - start < 4


async def test_past_the_drain_limit_a_pass_does_not_keep_the_process() -> None:
    with started("worker", "--drain-seconds", "0.5", module=SLOW_WORKER) as worker:
        worker.wait_until_ready()
        async with grpc.aio.insecure_channel(str(worker.address)) as channel:
            session = Session(worker_pb2_grpc.WorkerServiceStub(channel))
            await session.open()
            await session.send(step(1))
            await asyncio.sleep(0.5)
            start = monotonic()
            worker.send(signal.SIGTERM)
            assert await session.end() == DRAINING
        assert await asyncio.to_thread(worker.wait) == 0
        assert monotonic() - start < 4
