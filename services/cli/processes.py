"""Child processes that are services."""

import ctypes
import os
import signal
import subprocess
import sys
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shared.config import ENV_PREFIX, TlsConfig
from shared.grpc_client import channel_credentials
from shared.wire import CLIENT_OPTIONS, Address

_KILL_AFTER_DRAIN_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


@dataclass
class ServiceProcess:
    name: str
    command: str
    arguments: list[str]
    address: Address
    metrics_address: Address
    readiness: str
    drain_seconds: float
    # Where its output goes; None: where the parent's does.
    log_file: Path | None
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    is_ready: bool = field(default=False, init=False)

    def start(self) -> None:
        """In a session of its own: Ctrl-C reaches only the parent, which ends its children in order."""
        # What the parent read from its environment is in the flags; the rest must not reach the child.
        environment = {key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX)}
        with self.log_file.open("ab") if self.log_file else nullcontext() as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.cli", self.command, *self.arguments],
                start_new_session=True,
                env=environment,
                stdout=output,
                stderr=output,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        return self.process.poll() if self.process else None

    def last_lines(self, num_lines: int) -> list[str]:
        """Of its log; none if that went to the terminal."""
        if self.log_file is None:
            return []
        with self.log_file.open(encoding="utf-8", errors="replace") as lines:
            return [line.rstrip("\n") for line in deque(lines, num_lines)]

    def stop(self) -> None:
        """Asks it to shut down gracefully; kills it if that takes too long."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(self.drain_seconds + _KILL_AFTER_DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def check_ready(service: ServiceProcess, tls: TlsConfig) -> bool:
    """Whether its health service says SERVING."""
    credentials = channel_credentials(tls)
    if credentials is None:
        channel = grpc.insecure_channel(str(service.address), options=CLIENT_OPTIONS)
    else:
        channel = grpc.secure_channel(str(service.address), credentials, options=CLIENT_OPTIONS)
    with channel:
        request = health_pb2.HealthCheckRequest(service=service.readiness)
        try:
            status = health_pb2_grpc.HealthStub(channel).Check(request, timeout=1.0).status
        except grpc.RpcError:
            return False
        return bool(status == health_pb2.HealthCheckResponse.SERVING)


def is_free(address: Address) -> bool:
    """Whether a service could listen there now."""
    try:
        address.check_free()
    except OSError:
        return False
    return True


def _end_with_parent() -> None:
    """In the child, on Linux: SIGTERM when the parent dies, however it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
