"""The scheduler as a process, before a worker that is one too: signals, and bugs."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from triptych.v1 import scheduler_pb2_grpc

from shared.errors import reason_in
from shared.wire import CLIENT_OPTIONS, Address
from tests.integration.scheduler.client import prompt_of, request
from tests.support.fake_worker_model import undisturbed_output
from tests.support.processes import ServiceProcess, free_port, started


@dataclass
class WorkerProcess:
    """A fake worker."""

    process: subprocess.Popen[bytes]
    address: Address


@contextlib.contextmanager
def worker_process(port: int, step_seconds: float = 0.02) -> Iterator[WorkerProcess]:
    address = Address("127.0.0.1", port)
    command = [sys.executable, "-m", "tests.support.fake_worker", "--listen", str(address)]
    process = subprocess.Popen([*command, "--step-seconds", str(step_seconds)], stderr=subprocess.DEVNULL)
    try:
        yield WorkerProcess(process, address)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def scheduler_for(worker: WorkerProcess, *flags: str) -> Iterator[ServiceProcess]:
    with started("scheduler", "--worker", str(worker.address), *flags) as scheduler:
        scheduler.wait_until_ready()
        yield scheduler


@contextlib.contextmanager
def stub_of(scheduler: ServiceProcess) -> Iterator[Any]:
    with grpc.insecure_channel(str(scheduler.address), options=CLIENT_OPTIONS) as channel:
        yield scheduler_pb2_grpc.SchedulerServiceStub(channel)


def tokens_of(call: Any) -> list[int]:
    """Raises the call's error."""
    return [token_id for event in call for token_id in event.chunk.token_ids]


def wait_for_chunk(call: Any) -> None:
    next(event for event in call if event.HasField("chunk"))


def error_of(call: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        tokens_of(call)
    return caught.value


def test_a_killed_worker_is_found_lost_and_its_successor_used() -> None:
    port = free_port()
    with worker_process(port) as worker, scheduler_for(worker) as scheduler, stub_of(scheduler) as stub:
        call = stub.Generate(request(prompt_of(20), max_tokens=400))
        wait_for_chunk(call)
        start = time.monotonic()
        worker.process.kill()
        error = error_of(call)
        assert time.monotonic() - start < 5
        assert error.code() is StatusCode.UNAVAILABLE
        assert reason_in(error.trailing_metadata()) == "WORKER_LOST"
        with worker_process(port):
            scheduler.wait_until_ready()
            assert tokens_of(stub.Generate(request(prompt_of(20), max_tokens=3))) == undisturbed_output(
                prompt_of(20), 3
            )


def test_a_killed_scheduler_breaks_its_streams_and_its_successor_has_the_worker() -> None:
    with worker_process(free_port()) as worker:
        with scheduler_for(worker) as scheduler, stub_of(scheduler) as stub:
            call = stub.Generate(request(prompt_of(20), max_tokens=400))
            wait_for_chunk(call)
            scheduler.kill()
            assert error_of(call).code() is StatusCode.UNAVAILABLE
        with scheduler_for(worker) as scheduler, stub_of(scheduler) as stub:
            assert len(tokens_of(stub.Generate(request(prompt_of(20), max_tokens=3)))) == 3


def test_sigterm_lets_running_streams_end_and_then_the_process_ends_well() -> None:
    with (
        worker_process(free_port()) as worker,
        scheduler_for(worker) as scheduler,
        stub_of(scheduler) as stub,
    ):
        call = stub.Generate(request(prompt_of(20), max_tokens=60))
        wait_for_chunk(call)
        scheduler.send(signal.SIGTERM)
        assert len(tokens_of(call)) == 59
        assert scheduler.wait() == 0


def test_what_outlives_the_drain_limit_ends_with_an_error() -> None:
    with (
        worker_process(free_port()) as worker,
        scheduler_for(worker, "--drain-seconds", "0.3") as scheduler,
        stub_of(scheduler) as stub,
    ):
        call = stub.Generate(request(prompt_of(20), max_tokens=400))
        wait_for_chunk(call)
        scheduler.send(signal.SIGTERM)
        error = error_of(call)
        assert error.code() is StatusCode.UNAVAILABLE
        assert reason_in(error.trailing_metadata()) == "DRAINING"
        assert scheduler.wait() == 0


def test_a_scheduler_that_still_waits_for_its_worker_ends_at_once() -> None:
    with started("scheduler", "--worker", f"127.0.0.1:{free_port()}") as scheduler:
        time.sleep(0.3)
        assert scheduler.stop(3) == 0


@pytest.mark.slow
def test_a_stopped_worker_is_found_out_in_bounded_time_and_used_again_when_it_goes_on() -> None:
    with (
        worker_process(free_port()) as worker,
        scheduler_for(worker) as scheduler,
        stub_of(scheduler) as stub,
    ):
        call = stub.Generate(request(prompt_of(20), max_tokens=400))
        wait_for_chunk(call)
        worker.process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        error = error_of(call)
        assert time.monotonic() - start < 20
        assert reason_in(error.trailing_metadata()) == "WORKER_LOST"
        worker.process.send_signal(signal.SIGCONT)
        scheduler.wait_until_ready(seconds=20)
        assert len(tokens_of(stub.Generate(request(prompt_of(20), max_tokens=3)))) == 3


_BROKEN = """
import sys
from services.scheduler.config import SchedulerConfig
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.serve import run
from shared.config import load_config

def update(*_arguments):
    raise KeyError("a bug")

Scheduler.update = update
listen, metrics_listen, worker = sys.argv[1:]
run(load_config(SchedulerConfig, {"listen": listen, "metrics_listen": metrics_listen, "worker": worker}))
"""


def test_a_bug_in_the_loop_ends_the_process_and_with_it_every_call() -> None:
    listen, metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
    with worker_process(free_port()) as worker:
        arguments = [sys.executable, "-c", _BROKEN, listen, metrics, str(worker.address)]
        process = subprocess.Popen(arguments, stderr=subprocess.PIPE)
        with grpc.insecure_channel(listen, options=CLIENT_OPTIONS) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            deadline, error = time.monotonic() + 10, None
            while error is None or reason_in(error.trailing_metadata()) == "NO_WORKER":
                assert time.monotonic() < deadline
                error = error_of(stub.Generate(request(prompt_of(5)), wait_for_ready=True))
        assert error.code() is StatusCode.UNAVAILABLE
        _, log = process.communicate(timeout=5)
        assert process.returncode == 1
        assert b"a bug" in log
