"""The metrics of the scheduler alone. shared/README.md lists them, and a test keeps that list true."""

from prometheus_client import Counter, Gauge, Histogram

from services.scheduler.core.load import SchedulerLoad
from shared.metrics import COUNTS, LATENCY_SECONDS, STAGE_SECONDS

_LENGTHS = tuple(2**exponent for exponent in range(19))  # to 262,144 tokens

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
    "triptych_kv_blocks",
    "Blocks by state: live, cached, free; zero without a session.",
    ["worker", "state"],
)
WORKER_READY = Gauge(
    "triptych_worker_ready", "1 while the worker's session is open and it takes new work.", ["worker"]
)
REQUESTS = Gauge("triptych_scheduler_requests", "Requests by state: waiting, running.", ["state"])
PROMPT_TOKENS = Counter("triptych_prompt_tokens_total", "Prompt tokens of admitted requests.")
CACHED_TOKENS = Counter("triptych_cached_tokens_total", "Prompt tokens found in the prefix cache.")
COMPLETION_TOKENS = Counter("triptych_completion_tokens_total", "Tokens generated.")
PREEMPTIONS = Counter("triptych_preemptions_total", "Sequences preempted for lack of blocks.")
FINISHED_OUTPUTS = Counter(
    "triptych_finished_outputs_total", "Outputs that ended, by finish reason.", ["finish_reason"]
)
ENDED_REQUESTS = Counter(
    "triptych_ended_requests_total",
    "Requests by outcome: finished, cancelled, failed, rejected; the last two with the error's reason.",
    ["outcome", "reason"],
)
PROMPT_LEN = Histogram("triptych_prompt_len_tokens", "Prompts of admitted requests.", buckets=_LENGTHS)
OUTPUT_LEN = Histogram(
    "triptych_output_len_tokens", "Finished outputs, ending tokens included.", buckets=_LENGTHS
)
MAX_NUM_SEQS = Gauge("triptych_max_num_seqs", "Limit: sequences in one worker's running batch.")
MAX_NUM_BATCHED_TOKENS = Gauge(
    "triptych_max_num_batched_tokens", "Limit: tokens in one step of the worker.", ["worker"]
)
MAX_WAITING = Gauge("triptych_max_waiting_requests", "Limit: requests that wait.")
MAX_KV_BLOCKS = Gauge("triptych_max_kv_blocks", "Limit: blocks of the worker's cache.", ["worker"])
MAX_MODEL_LEN = Gauge("triptych_max_model_len_tokens", "Limit: prompt plus output; 0 without a worker.")


def observe_load(address: str, worker: int, load: SchedulerLoad) -> None:
    """Sets the gauges of the queue and of one worker; to zero if its session has ended."""
    REQUESTS.labels("waiting").set(load.num_waiting)
    REQUESTS.labels("running").set(load.num_running)
    own = load.workers.get(worker)
    WORKER_READY.labels(address).set(own is not None and not own.is_draining)
    MAX_NUM_BATCHED_TOKENS.labels(address).set(own.max_num_batched_tokens if own else 0)
    live, cached, free = (
        (own.num_live_blocks, own.num_cached_blocks, own.num_free_blocks) if own else (0, 0, 0)
    )
    MAX_KV_BLOCKS.labels(address).set(live + cached + free)
    for state, count in (("live", live), ("cached", cached), ("free", free)):
        BLOCKS.labels(address, state).set(count)
