"""What both ends of every connection must agree on: addresses, the message limit, keepalive.

The client's ping interval and the minimum that the server accepts are derived from one number. If they
disagreed, pings during a long prefill would close the connection (GOAWAY, too_many_pings).
"""

import re
import socket
from dataclasses import dataclass
from typing import Any, TypeAlias

# Over it a call ends with RESOURCE_EXHAUSTED. Room for a 66,000-token prompt with prompt log-probabilities;
# logits never cross the wire.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

# A dead peer (stopped, unplugged) is detected within interval + timeout.
KEEPALIVE_INTERVAL_SECONDS = 10.0
KEEPALIVE_TIMEOUT_SECONDS = 5.0

MAX_PORT = 65535
_ADDRESS = re.compile(r"(\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[\w.-]+)):(?P<port>[0-9]{1,5})", re.ASCII)

Options: TypeAlias = list[tuple[str, Any]]


def client_options(keepalive_seconds: float = KEEPALIVE_INTERVAL_SECONDS) -> Options:
    return [
        *_options_of_both(keepalive_seconds),
        # Reconnects within seconds of a service's return; the default backs off to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Callers retry; a transparent retry could run a request twice.
        ("grpc.enable_retries", 0),
    ]


def server_options(keepalive_seconds: float = KEEPALIVE_INTERVAL_SECONDS) -> Options:
    """For a server whose clients ping at this interval."""
    return [
        *_options_of_both(keepalive_seconds),
        # Half the interval, so that a punctual client never counts as abusive. (The often-copied key
        # min_recv_ping_interval_without_data_ms does nothing.)
        ("grpc.http2.min_ping_interval_without_data_ms", int(keepalive_seconds * 1000) // 2),
        # A port in use is an error at start. By default Linux lets two processes share it.
        ("grpc.so_reuseport", 0),
    ]


def _options_of_both(keepalive_seconds: float) -> Options:
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", int(keepalive_seconds * 1000)),
        # The first key alone leaves a silent peer unnoticed for a minute (gRPC 1.85); the second acts.
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_SECONDS * 1000)),
        ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_TIMEOUT_SECONDS * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


CLIENT_OPTIONS = client_options()
SERVER_OPTIONS = server_options()


@dataclass(frozen=True)
class Address:
    """HOST:PORT; an IPv6 host stands in brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Raises ValueError with a sentence."""
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match["port"]) > MAX_PORT:
            raise ValueError(
                f"not HOST:PORT, with a port from 0 to {MAX_PORT} and an IPv6 host in brackets: [::1]:50051"
            )
        return cls(match["ipv6"] or match["host"], int(match["port"]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def with_port(self, port: int) -> "Address":
        return Address(self.host, port)

    def check_free(self) -> None:
        """Raises OSError if no server can listen here. gRPC would say only that it cannot."""
        family, kind, _, _, where = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            # As a server does: connections of an earlier one in TIME_WAIT do not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
