"""The metrics of the scheduler alone. shared/README.md lists them, and a test keeps that list true."""

from prometheus_client import Counter, Gauge, Histogram

from shared.metrics import COUNTS, LATENCY_SECONDS, STAGE_SECONDS

QUEUE_TIME = Histogram(
    "triptych_queue_time_seconds", "From admission to the first step.", buckets=LATENCY_SECONDS
)
TTFT = Histogram("triptych_ttft_seconds", "From admission to the first token.", buckets=LATENCY_SECONDS)
ITL = Histogram("triptych_itl_seconds", "Between two tokens of one output.", buckets=LATENCY_SECONDS)
STEP_TIME = Histogram(
    "triptych_step_time_seconds",
    "One step: from sending it to its result.",
    ["worker"],
    buckets=STAGE_SECONDS,
)
STEP_OVERHEAD = Histogram(
    "triptych_step_overhead_seconds",
    "A step's time less the worker's own (prepare, forward, sample).",
    ["worker"],
    buckets=STAGE_SECONDS,
)
STEP_SEQUENCES = Histogram(
    "triptych_step_batch_size_sequences", "Sequences in one step.", ["worker"], buckets=COUNTS
)
STEP_TOKENS = Histogram("triptych_step_batch_size_tokens", "Tokens in one step.", ["worker"], buckets=COUNTS)
BLOCKS = Gauge(
    "triptych_kv_blocks", "Blocks by state: live, cached, free; their sum is constant.", ["worker", "state"]
)
WORKER_READY = Gauge("triptych_worker_ready", "1 while a session with the worker is open.", ["worker"])
REQUESTS = Gauge("triptych_scheduler_requests", "Requests by state: waiting, running.", ["state"])
PROMPT_TOKENS = Counter("triptych_prompt_tokens_total", "Prompt tokens of admitted requests.")
CACHED_TOKENS = Counter("triptych_cached_tokens_total", "Prompt tokens found in the prefix cache.")
COMPLETION_TOKENS = Counter("triptych_completion_tokens_total", "Tokens generated.")
PREEMPTIONS = Counter("triptych_preemptions_total", "Sequences preempted for lack of blocks.")
