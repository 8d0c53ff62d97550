"""What both ends of every connection must agree on: addresses, the message bound, keepalive.

A client's ping interval and the server's tolerance are derived from one number here. Were they set apart, a
ping during a long prefill would end the connection with GOAWAY too_many_pings.
"""

from dataclasses import dataclass
from typing import Any

# Over it a call ends with RESOURCE_EXHAUSTED. Room for a 66,000-token prompt with prompt log-probabilities;
# logits never cross the wire.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

# A dead peer (stopped, unplugged) is found out within interval + timeout.
KEEPALIVE_INTERVAL_SECONDS = 10.0
KEEPALIVE_TIMEOUT_SECONDS = 5.0

_INTERVAL_MS = int(KEEPALIVE_INTERVAL_SECONDS * 1000)
_TIMEOUT_MS = int(KEEPALIVE_TIMEOUT_SECONDS * 1000)

_BOTH: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", _TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

CLIENT_OPTIONS: list[tuple[str, Any]] = [
    *_BOTH,
    # A service that comes back is found within seconds; the default backs off to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Callers retry; a transparent retry could run a request twice.
    ("grpc.enable_retries", 0),
]

SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_BOTH,
    # Half the interval: pings of a client on schedule never count as abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", _INTERVAL_MS // 2),
    # A port in use is an error at start. By default Linux lets two processes share it.
    ("grpc.so_reuseport", 0),
]


@dataclass(frozen=True)
class Address:
    """HOST:PORT; an IPv6 host stands in brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Raises ValueError with a sentence."""
        host, separator, port = text.rpartition(":")
        if not separator or not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"{text!r} is not HOST:PORT with a port from 0 to 65535")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise ValueError(f"{text!r}: an IPv6 host stands in brackets, as in [::1]:50051")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def with_port(self, port: int) -> "Address":
        """The same host, another port."""
        return Address(self.host, port)
