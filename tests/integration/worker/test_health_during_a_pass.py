"""Health answers in the middle of a pass, and says when one is overdue."""

import asyncio
import threading
import time

import pytest
from grpc_health.v1 import health_pb2
from triptych.v1 import worker_pb2

from services.worker import serve
from tests.integration.worker.conftest import StartWorker, Worker
from tests.integration.worker.sessions import Session, sequence, step

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
NUM_CHECKS = 50


async def test_health_answers_during_a_pass(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass is real: prefills of the embedded model, until enough checks are answered.

    How soon they are is measured in tests/e2e/test_long_prefill.py.
    """
    prefill = step(1, sequence(list(range(256)), block_ids=tuple(range(1, 17))))
    has_begun, is_answered = threading.Event(), threading.Event()

    def long_pass(message: worker_pb2.Step) -> worker_pb2.StepResult:
        has_begun.set()
        deadline = time.monotonic() + 60
        result = worker.runner.runner.execute(prefill)
        while not is_answered.is_set():
            assert time.monotonic() < deadline, "the event loop waits for the pass"
            result = worker.runner.runner.execute(prefill)
        return result

    monkeypatch.setattr(worker.runner, "run", long_pass)
    session = Session(worker.stub)
    await session.open()
    await session.send(prefill)
    assert await asyncio.to_thread(has_begun.wait, 30)
    for _ in range(NUM_CHECKS):
        for service in ("", serve.SERVICE_NAME):
            assert await worker.health(service) == SERVING
    assert worker.runner.executed == []
    is_answered.set()
    assert (await session.result()).step_id == 1


async def test_an_overdue_pass_turns_readiness_off_until_it_returns(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(serve, "_WATCHDOG_SECONDS", 0.02)
    monkeypatch.setattr(serve, "perf_counter", lambda: time.perf_counter() + now)
    worker = await start_worker(step_overdue_seconds=600)
    await worker.until_ready()
    session = Session(worker.stub)
    await session.open()
    worker.runner.gate.clear()
    await session.send(step(1))
    assert await asyncio.to_thread(worker.runner.is_in_pass.wait, 30)
    await asyncio.sleep(0.1)  # several turns of the watchdog
    assert await worker.health() == SERVING
    now = 601.0
    await worker.until(NOT_SERVING)
    assert await worker.health("") == SERVING
    worker.runner.gate.set()
    await session.result()
    await worker.until_ready()
