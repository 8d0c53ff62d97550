"""The metrics that every service exports, and the HTTP server for them.

What one service alone exports is in its own metrics.py, so that no service exports another's.
shared/README.md lists all of them, and a test keeps that list true.

Units are in the names. Labels come from closed sets (our methods, status codes, stages, configured workers):
nothing that a caller sends becomes a label.
"""

import platform
from importlib.metadata import version

import grpc
from prometheus_client import Counter, Gauge, Histogram, start_http_server

from shared.config import ConfigError
from shared.wire import Address

# A boundary at least every factor of two, so that 50 and 100 ms, or 0.3 and 0.5 s, are in different buckets.
LATENCY_SECONDS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5),
    *(10.0, 20.0, 30.0, 60.0, 120.0, 200.0, 300.0),
)
# Of parts of a call or of a step, the shortest of which take a tenth of a millisecond.
STAGE_SECONDS = (0.0001, 0.0002, 0.0005, *LATENCY_SECONDS)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

BUILD_INFO = Gauge("triptych_build_info", "1, with the versions as labels.", ["version", "python", "grpc"])
# The label is not `service`: Prometheus itself attaches that one to targets in Kubernetes.
READY = Gauge("triptych_ready", "1 while the health service says SERVING, else 0.", ["grpc_service"])

# Each boundary, seen from both sides. The difference of the two latencies is the wire and its queues.
SERVER_REQUESTS = Counter("triptych_server_requests_total", "Calls served, by outcome.", ["method", "code"])
SERVER_LATENCY = Histogram(
    "triptych_server_latency_seconds", "From arrival to the call's end.", ["method"], buckets=LATENCY_SECONDS
)
SERVER_IN_FLIGHT = Gauge("triptych_server_in_flight_requests", "Calls being served now.", ["method"])
SERVER_RECEIVED = Counter("triptych_server_received_bytes_total", "Message bytes received.", ["method"])
SERVER_SENT = Counter("triptych_server_sent_bytes_total", "Message bytes sent.", ["method"])
CLIENT_REQUESTS = Counter("triptych_client_requests_total", "Calls made, by outcome.", ["method", "code"])
CLIENT_LATENCY = Histogram(
    "triptych_client_latency_seconds", "From the call to its end.", ["method"], buckets=LATENCY_SECONDS
)
CLIENT_IN_FLIGHT = Gauge("triptych_client_in_flight_requests", "Calls made and not ended.", ["method"])
CLIENT_RECEIVED = Counter("triptych_client_received_bytes_total", "Message bytes received.", ["method"])
CLIENT_SENT = Counter("triptych_client_sent_bytes_total", "Message bytes sent.", ["method"])


def serve_metrics(address: Address) -> Address:
    """Serves /metrics on a thread of its own; returns the address, with the real port if 0 was asked for.

    Raises ConfigError if the port is in use.
    """
    BUILD_INFO.labels(version("triptych"), platform.python_version(), grpc.__version__).set(1)
    try:
        server, _ = start_http_server(address.port, addr=address.host)
    except OSError as error:
        raise ConfigError(f"--metrics-listen: cannot listen on {address}: {error.strerror}") from None
    return address.with_port(server.server_port)
