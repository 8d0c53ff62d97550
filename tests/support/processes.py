"""Real `triptych` processes for tests: started on free ports, waited for until healthy, always ended.

with started("worker") as worker, started("scheduler", "--worker", str(worker.address)) as scheduler:
    scheduler.wait_until_ready()      # its readiness; wait_until_ready("") is liveness
    worker.kill()                     # as kill -9
    with started("worker", port=worker.address.port): ...    # comes back where it was
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shared.wire import CLIENT_OPTIONS, Address

READINESS = {
    "worker": "triptych.v1.WorkerService",
    "scheduler": "triptych.v1.SchedulerService",
    "render": "triptych.v1.RenderService",
}
_COMMAND = "services.cli"
_ROOT = Path(__file__).parents[2]
_START_SECONDS = 60.0
# As CI sets them: help and progress in colours, without a terminal.
_COLORS = {"GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS", "TTY_COMPATIBLE"}
# Below the ports that a kernel picks by itself, for outgoing connections and for port 0: one of those may be
# taken again before the process that it was picked for listens there.
_PORTS = range(10_000, 30_000)
# Of its own: hypothesis seeds the common one, and two test runs on one machine would draw the same ports.
_DRAW = random.Random()
_reserved: set[int] = set()


class TriptychProcess:
    """A process of the `triptych` command. Its output goes to files, so that it never waits for a reader."""

    def __init__(
        self, *arguments: str, environment: Mapping[str, str] | None = None, module: str = _COMMAND
    ) -> None:
        """`environment` is added to ours, from which everything of Triptych's is taken out.

        module: runs instead of the command, with the same arguments.
        """
        self._stdout = tempfile.TemporaryFile()  # noqa: SIM115 closed by `close`
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            stderr=self._stderr,
            cwd=_ROOT,
            env=_clean_environment() | dict(environment or {}),
            start_new_session=True,
        )

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return _content(self._stdout)

    @property
    def stderr(self) -> str:
        """What it has logged so far."""
        return _content(self._stderr)

    @property
    def log(self) -> list[dict[str, Any]]:
        """The JSON lines that it has logged so far; a line that is being written is left out."""
        lines = self.stderr.split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def wait_until_serving(self, address: Address, service: str, seconds: float = _START_SECONDS) -> None:
        """Until health at one of its addresses says SERVING. Fails if it ends or takes too long."""
        deadline = time.monotonic() + seconds
        while health_at(address, service) != health_pb2.HealthCheckResponse.SERVING:
            code = self.process.poll()
            assert code is None, f"ended with exit code {code}:\n{self.stderr[-2000:]}"
            assert time.monotonic() < deadline, f"{service!r} is not ready:\n{self.stderr[-2000:]}"
            time.sleep(0.05)

    def send(self, signal_number: signal.Signals) -> None:
        """Sends a signal."""
        self.process.send_signal(signal_number)

    def wait(self, seconds: float = 10.0) -> int:
        """The exit code. Fails if it takes longer."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s:\n{self.stderr[-2000:]}") from None

    def stop(self, seconds: float = 10.0) -> int:
        """SIGTERM; the exit code."""
        self.send(signal.SIGTERM)
        return self.wait(seconds)

    def kill(self) -> None:
        """SIGKILL; also ends a stopped process (SIGSTOP)."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Kills it if it still runs, and lets its output go."""
        self.kill()
        self._stdout.close()
        self._stderr.close()


class ServiceProcess(TriptychProcess):
    """One of the three services, listening on loopback."""

    def __init__(
        self,
        command: str,
        *flags: str,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
        module: str = _COMMAND,
    ) -> None:
        """port: a free one by default. module: as in TriptychProcess."""
        self.command = command
        self.address = Address("127.0.0.1", port or free_port())
        self.metrics_address = Address("127.0.0.1", free_port())
        listen = ("--listen", str(self.address), "--metrics-listen", str(self.metrics_address))
        if command == "scheduler" and "--worker" not in flags:
            # Not the default address: it would fence the scheduler of a `triptych up` on this machine.
            flags = ("--worker", f"127.0.0.1:{free_port()}", *flags)
        super().__init__(command, *listen, *flags, environment=environment, module=module)

    def wait_until_ready(self, service: str | None = None, seconds: float = _START_SECONDS) -> None:
        """Until health says SERVING for its service (or `service`). Fails if it ends or takes too long."""
        service = READINESS[self.command] if service is None else service
        self.wait_until_serving(self.address, service, seconds)

    def health(self, service: str, timeout: float = 1.0) -> int:
        """HealthCheckResponse.status of a service; UNKNOWN if it does not answer."""
        return health_at(self.address, service, timeout)


def health_at(address: Address, service: str, timeout: float = 1.0) -> int:
    """HealthCheckResponse.status of a service at an address; UNKNOWN if it does not answer."""
    with grpc.insecure_channel(str(address), options=CLIENT_OPTIONS) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout).status)
        except grpc.RpcError:
            return int(health_pb2.HealthCheckResponse.UNKNOWN)


@contextmanager
def started(
    command: str,
    *flags: str,
    port: int | None = None,
    environment: Mapping[str, str] | None = None,
    module: str = _COMMAND,
) -> Iterator[ServiceProcess]:
    """A service, alive (not yet ready), killed at the end."""
    service = ServiceProcess(command, *flags, port=port, environment=environment, module=module)
    try:
        service.wait_until_ready("")
        yield service
    finally:
        service.close()


def run(
    *arguments: str, environment: Mapping[str, str] | None = None, stdin: str = "", seconds: float = 30.0
) -> "subprocess.CompletedProcess[str]":
    """A command that ends by itself. stdin: what is typed."""
    return subprocess.run(
        [sys.executable, "-m", _COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=_ROOT,
        env=_clean_environment() | dict(environment or {}),
        timeout=seconds,
        check=False,
    )


def free_port() -> int:
    """A port that nobody listens on, and that neither this process nor the kernel gives to anybody else."""
    return _reserve([0])


def free_base_port(num_services: int) -> int:
    """For `triptych up`: so many free ports in a row, and the same 1,000 above."""
    return _reserve([offset + above for offset in range(num_services) for above in (0, 1000)])


def _reserve(offsets: Sequence[int]) -> int:
    """A base, drawn at random, from which all of these ports are free."""
    for _ in range(1000):
        base = _DRAW.choice(_PORTS)
        ports = {base + offset for offset in offsets}
        if ports.isdisjoint(_reserved) and all(_is_free(port) for port in ports):
            _reserved.update(ports)
            return base
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _clean_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.lower().startswith("triptych_") and name not in _COLORS
    }


def _content(file: Any) -> str:
    """All of it; the process writes through a descriptor whose offset is ours too, so seeking is out."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode(errors="replace")
