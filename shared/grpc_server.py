"""The gRPC server of every service: TLS, message limits, health, reflection and graceful shutdown.

Graceful shutdown: at the first SIGTERM or SIGINT readiness turns NOT_SERVING and new calls are rejected
(UNAVAILABLE, DRAINING). Running calls may finish within `drain_seconds`; what still runs then fails with that
same error, so that no caller takes a cut stream for a complete one. Then the process exits without stopping
the server (`end_process`). A second signal exits immediately.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable
from time import monotonic
from typing import NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from shared import metrics
from shared.config import ConfigError, ServiceConfig
from shared.interceptors import DrainState, ServerInterceptor
from shared.log import get_logger
from shared.unsent_bytes import has_unsent_bytes
from shared.wire import SERVER_OPTIONS, Address

_log = get_logger()

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
# Before the process exits: how long to wait until the kernel has sent the last bytes of finished calls, and
# then for callers to read them. A caller that writes to a closed connection may lose what it has not read.
_MAX_SEND_SECONDS, _READ_SECONDS = 3.0, 0.1


class GrpcServer:
    """One listening server. Register servicers on `.server`, then `start`, then `run_until_signal`."""

    def __init__(self, config: ServiceConfig, service_names: Iterable[str]) -> None:
        """`service_names`: full names of the services that are registered, for reflection and readiness."""
        self._config = config
        self._service_names = tuple(service_names)
        self.drain = DrainState()
        self.server = grpc.aio.server(interceptors=[ServerInterceptor(self.drain)], options=SERVER_OPTIONS)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        names = (*self._service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.server)
        self._signalled = asyncio.Event()
        self._port = 0

    async def start(self) -> Address:
        """Starts to listen. Returns the address, with the port that was chosen for 0. Raises ConfigError."""
        address = self._config.listen
        try:
            address.check_free()
            port = self._port = self._bind(address)
        except (OSError, RuntimeError) as error:
            why = error.strerror if isinstance(error, OSError) else "gRPC refuses the address"
            raise ConfigError(f"--listen: cannot listen on {address}: {why}") from None
        for name in self._service_names:
            await self.set_ready(name, False)
        await self._health.set("", _SERVING)
        await self.server.start()
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, self._on_signal, signal_number)
        return address.with_port(port)

    async def set_ready(self, service_name: str, ready: bool) -> None:
        """Sets one service's health status. During a graceful shutdown it stays NOT_SERVING."""
        serving = ready and not self.drain.draining
        metrics.READY.labels(service_name).set(serving)
        await self._health.set(service_name, _SERVING if serving else _NOT_SERVING)

    async def run_until_signal(self, on_drain: Callable[[], None] | None = None) -> None:
        """Serves until SIGTERM or SIGINT, then shuts down gracefully; `end_process` follows.

        The stream of a client that does not read cannot be ended; it breaks when the process exits.
        """
        await self._signalled.wait()
        self.drain.draining = True
        if on_drain is not None:
            on_drain()
        for name in self._service_names:
            await self.set_ready(name, False)
        _log.info("draining", calls=len(self.drain.calls), limit_seconds=self._config.drain_seconds)
        if not await self.drain.wait_until_idle(self._config.drain_seconds):
            _log.warning("drain_limit_reached", calls=len(self.drain.calls))
            await self.drain.end_calls()
        await self._linger()

    async def close(self) -> None:
        """Stops immediately: when a service cannot start, and in tests."""
        await self.server.stop(grace=None)

    def stop(self) -> None:
        """Begins the graceful shutdown, as a signal does."""
        self._signalled.set()

    async def _linger(self) -> None:
        deadline = monotonic() + _MAX_SEND_SECONDS
        while has_unsent_bytes(self._port) and monotonic() < deadline:  # noqa: ASYNC110 no event tells
            await asyncio.sleep(0.05)
        await asyncio.sleep(_READ_SECONDS)

    def _bind(self, address: Address) -> int:
        if self._config.tls_cert is None or self._config.tls_key is None:
            return self.server.add_insecure_port(str(address))
        credentials = grpc.ssl_server_credentials(
            [(self._config.tls_key.read_bytes(), self._config.tls_cert.read_bytes())],
            root_certificates=self._config.tls_ca.read_bytes() if self._config.tls_ca else None,
            require_client_auth=self._config.tls_client_auth,
        )
        return self.server.add_secure_port(str(address), credentials)

    def _on_signal(self, signal_number: signal.Signals) -> None:
        if self._signalled.is_set():
            os._exit(128 + signal_number)
        self._signalled.set()


def end_process() -> NoReturn:
    """Exits with code 0 after a graceful shutdown, without stopping the server.

    `server.stop` fails a call that has arrived but has no handler yet with CANCELLED, which clients do not
    retry (gRPC 1.85; its issue 41785). If the connection closes instead, it fails with UNAVAILABLE.
    """
    os._exit(0)
