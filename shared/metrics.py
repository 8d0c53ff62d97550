"""Every Prometheus metric of Triptych, in one place; shared/README.md lists them and a test keeps it true.

Units are in the names. Labels come from closed sets (our methods, status codes, stages, configured workers):
nothing that a caller sends becomes a label.
"""

from prometheus_client import Counter, Gauge, Histogram, start_http_server

from shared.config import ConfigError
from shared.wire import Address

# From a tenth of a millisecond (one step on loopback) to minutes (a long prompt).
_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

# Each boundary, seen from both sides. The difference of the two latencies is the wire and its queues.
SERVER_REQUESTS = Counter("triptych_server_requests_total", "Calls served, by outcome.", ["method", "code"])
SERVER_LATENCY = Histogram(
    "triptych_server_latency_seconds", "From arrival to the call's end.", ["method"], buckets=_SECONDS
)
SERVER_IN_FLIGHT = Gauge("triptych_server_in_flight_requests", "Calls being served now.", ["method"])
SERVER_RECEIVED = Counter("triptych_server_received_bytes_total", "Message bytes received.", ["method"])
SERVER_SENT = Counter("triptych_server_sent_bytes_total", "Message bytes sent.", ["method"])
CLIENT_REQUESTS = Counter("triptych_client_requests_total", "Calls made, by outcome.", ["method", "code"])
CLIENT_LATENCY = Histogram(
    "triptych_client_latency_seconds", "From the call to its end.", ["method"], buckets=_SECONDS
)
CLIENT_IN_FLIGHT = Gauge("triptych_client_in_flight_requests", "Calls made and not ended.", ["method"])
CLIENT_RECEIVED = Counter("triptych_client_received_bytes_total", "Message bytes received.", ["method"])
CLIENT_SENT = Counter("triptych_client_sent_bytes_total", "Message bytes sent.", ["method"])

# Render: one stage each.
RENDER_STAGE = Histogram(
    "triptych_render_stage_seconds", "CPU time of one stage of one request.", ["stage"], buckets=_SECONDS
)

# Scheduler: a request's time, a step's time, what is held.
QUEUE_TIME = Histogram("triptych_queue_time_seconds", "From admission to the first step.", buckets=_SECONDS)
TTFT = Histogram("triptych_ttft_seconds", "From admission to the first token.", buckets=_SECONDS)
ITL = Histogram("triptych_itl_seconds", "Between two tokens of one output.", buckets=_SECONDS)
STEP_TIME = Histogram(
    "triptych_step_time_seconds", "One step: from sending it to its result.", ["worker"], buckets=_SECONDS
)
STEP_OVERHEAD = Histogram(
    "triptych_step_overhead_seconds",
    "A step's time less the worker's own (prepare, forward, sample).",
    ["worker"],
    buckets=_SECONDS,
)
STEP_SEQUENCES = Histogram(
    "triptych_step_batch_size_sequences", "Sequences in one step.", ["worker"], buckets=_COUNTS
)
STEP_TOKENS = Histogram("triptych_step_batch_size_tokens", "Tokens in one step.", ["worker"], buckets=_COUNTS)
BLOCKS = Gauge(
    "triptych_kv_blocks", "Blocks by state: live, cached, free; their sum is constant.", ["worker", "state"]
)
WORKER_READY = Gauge("triptych_worker_ready", "1 while a session with the worker is open.", ["worker"])
REQUESTS = Gauge("triptych_scheduler_requests", "Requests by state: waiting, running.", ["state"])
PROMPT_TOKENS = Counter("triptych_prompt_tokens_total", "Prompt tokens of admitted requests.")
CACHED_TOKENS = Counter("triptych_cached_tokens_total", "Prompt tokens found in the prefix cache.")
COMPLETION_TOKENS = Counter("triptych_completion_tokens_total", "Tokens generated.")
PREEMPTIONS = Counter("triptych_preemptions_total", "Sequences preempted for lack of blocks.")

# Worker: one pass, stage by stage.
WORKER_STAGE = Histogram(
    "triptych_worker_stage_seconds",
    "One stage of one step: queue, prepare, forward, sample.",
    ["stage"],
    buckets=_SECONDS,
)
MODEL_LOAD = Gauge("triptych_model_load_seconds", "Time that loading the model took.")


def serve_metrics(address: Address) -> Address:
    """Serves /metrics on a thread of its own; returns the address, with the real port if 0 was asked for.

    Raises ConfigError if the port is in use.
    """
    try:
        server, _ = start_http_server(address.port, addr=address.host)
    except OSError as error:
        raise ConfigError(f"--metrics-listen: cannot listen on {address}: {error.strerror}") from None
    return address.with_port(server.server_port)
