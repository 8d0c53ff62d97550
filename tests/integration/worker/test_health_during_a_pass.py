"""Health answers in the middle of a pass, and says when one is overdue."""

import asyncio
from time import perf_counter

import pytest
from grpc_health.v1 import health_pb2
from triptych.v1 import worker_pb2

from services.worker import serve
from tests.integration.worker.conftest import StartWorker, Worker
from tests.integration.worker.sessions import Session, sequence, step

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
PASS_SECONDS = 3.0


async def test_health_answers_within_100_ms_during_a_pass_of_seconds(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass is real: prefills of the embedded model, on as many threads as there are cores."""
    prefill = step(1, sequence(list(range(256)), block_ids=tuple(range(1, 17))))

    def long_pass(message: worker_pb2.Step) -> worker_pb2.StepResult:
        end = perf_counter() + PASS_SECONDS
        while perf_counter() < end:
            result = worker.runner.runner.execute(prefill)
        return result

    monkeypatch.setattr(worker.runner, "run", long_pass)
    session = Session(worker.stub)
    await session.open()
    await session.send(prefill)
    result = asyncio.ensure_future(session.result())
    seconds: list[float] = []
    while not result.done():
        for service in ("", serve.SERVICE_NAME):
            start = perf_counter()
            assert await worker.health(service) == SERVING
            seconds.append(perf_counter() - start)
        await asyncio.sleep(0.02)
    assert (await result).step_id == 1
    assert len(seconds) > 20
    # All but one in twenty: on a machine that others use, the asker itself may be kept waiting.
    assert sorted(seconds)[len(seconds) * 19 // 20] < 0.1, seconds


async def test_an_overdue_pass_turns_readiness_off_until_it_returns(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_WATCHDOG_SECONDS", 0.02)
    worker = await start_worker(step_overdue_seconds=0.3)
    await worker.until_ready()
    session = Session(worker.stub)
    await session.open()
    worker.runner.gate.clear()
    await session.send(step(1))
    await asyncio.sleep(0.1)
    assert await worker.health() == SERVING
    await asyncio.sleep(0.5)
    assert await worker.health() == NOT_SERVING
    assert await worker.health("") == SERVING
    worker.runner.gate.set()
    await session.result()
    await worker.until_ready()
