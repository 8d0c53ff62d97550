"""Channels to other services: message limit, keepalive, TLS; each call carries its context and is counted.

The channel is wrapped rather than given grpc.aio's client interceptors: those see neither bytes nor, for
streams, a reliable end.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

import grpc

from shared import metrics
from shared.config import TlsConfig
from shared.request_context import outgoing_metadata
from shared.wire import CLIENT_OPTIONS, Address


def create_channel(address: Address, tls: TlsConfig) -> grpc.aio.Channel:
    """A channel that connects when first used and reconnects automatically."""
    credentials = channel_credentials(tls)
    if credentials is None:
        return ObservedChannel(grpc.aio.insecure_channel(str(address), options=CLIENT_OPTIONS))
    return ObservedChannel(grpc.aio.secure_channel(str(address), credentials, options=CLIENT_OPTIONS))


def channel_credentials(tls: TlsConfig) -> grpc.ChannelCredentials | None:
    """The credentials to connect with; None for plaintext."""
    if tls.tls_ca is None:
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=tls.tls_ca.read_bytes(),
        private_key=tls.tls_key.read_bytes() if tls.tls_key else None,
        certificate_chain=tls.tls_cert.read_bytes() if tls.tls_cert else None,
    )


class ObservedChannel(grpc.aio.Channel):
    """Passes the request context on with each call, and counts and times it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def __aenter__(self) -> "ObservedChannel":
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._observed(self._channel.unary_unary, method, *args, **kwargs)

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._observed(self._channel.unary_stream, method, *args, **kwargs)

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._observed(self._channel.stream_unary, method, *args, **kwargs)

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._observed(self._channel.stream_stream, method, *args, **kwargs)

    @staticmethod
    def _observed(
        make: Callable[..., Any],
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        **kwargs: Any,
    ) -> Callable[..., Any]:
        sent = metrics.CLIENT_SENT.labels(method)
        received = metrics.CLIENT_RECEIVED.labels(method)

        def serialize(message: Any) -> bytes:
            data = request_serializer(message)
            sent.inc(len(data))
            return data

        def deserialize(data: bytes) -> Any:
            received.inc(len(data))
            return response_deserializer(data)

        start_call = make(method, serialize, deserialize, **kwargs)

        def call(*args: Any, metadata: Any = None, **call_kwargs: Any) -> Any:
            started = start_call(*args, metadata=[*(metadata or ()), *outgoing_metadata()], **call_kwargs)
            _observe(method, started)
            return started

        return call


# Tasks that wait for a call's final status; referenced here so that they are not garbage-collected.
_observers: set[asyncio.Task[None]] = set()


def _observe(method: str, call: Any) -> None:
    start = perf_counter()
    metrics.CLIENT_IN_FLIGHT.labels(method).inc()

    async def record() -> None:
        code = await call.code()
        metrics.CLIENT_REQUESTS.labels(method, code.name).inc()

    def ended(_call: Any) -> None:
        metrics.CLIENT_IN_FLIGHT.labels(method).dec()
        metrics.CLIENT_LATENCY.labels(method).observe(perf_counter() - start)
        task = asyncio.get_running_loop().create_task(record())
        _observers.add(task)
        task.add_done_callback(_observers.discard)

    call.add_done_callback(ended)
