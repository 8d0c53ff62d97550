"""How a real worker process ends. The bounds are far below what must not be waited for."""

import asyncio
import signal

import grpc
from triptych.v1 import worker_pb2_grpc

from shared.errors import Reason
from tests.integration.worker.sessions import Session, step
from tests.support.processes import started

SLOW_WORKER = "tests.integration.worker.slow_worker"
DRAINING = (grpc.StatusCode.UNAVAILABLE, Reason.DRAINING)


async def test_sigterm_of_an_idle_worker_ends_its_session_and_the_process_quickly() -> None:
    with started("worker", "--drain-seconds", "600") as worker:
        worker.wait_until_ready()
        async with grpc.aio.insecure_channel(str(worker.address)) as channel:
            session = Session(worker_pb2_grpc.WorkerServiceStub(channel))
            await session.open()
            await session.execute(step(1))
            worker.send(signal.SIGTERM)
            assert await asyncio.wait_for(session.end(), 10) == DRAINING
        assert await asyncio.to_thread(worker.wait, 30) == 0


def test_sigterm_while_the_model_loads_ends_the_process_quickly() -> None:
    with started("worker", "--drain-seconds", "600") as worker:
        assert worker.stop(30) == 0


async def test_past_the_drain_limit_a_pass_does_not_keep_the_process() -> None:
    with started("worker", "--drain-seconds", "0.5", module=SLOW_WORKER) as worker:
        worker.wait_until_ready()
        async with grpc.aio.insecure_channel(str(worker.address)) as channel:
            session = Session(worker_pb2_grpc.WorkerServiceStub(channel))
            await session.open()
            await session.send(step(1))
            await asyncio.sleep(0.5)  # the pass has begun, or it is refused all the same
            worker.send(signal.SIGTERM)
            assert await asyncio.wait_for(session.end(), 10) == DRAINING
        assert await asyncio.to_thread(worker.wait, 30) == 0
