"""The metrics of the worker alone. shared/README.md lists them, and a test keeps that list true."""

from prometheus_client import Gauge, Histogram
from triptych.v1 import types_pb2

from shared.metrics import STAGE_SECONDS

WORKER_STAGE = Histogram(
    "triptych_worker_stage_seconds",
    "One stage of one step: queue, prepare, forward, sample.",
    ["stage"],
    buckets=STAGE_SECONDS,
)
MODEL_LOAD = Gauge("triptych_model_load_seconds", "Time that loading the model took.")
# What this worker can do: set once, when its model is loaded.
KV_CACHE_BLOCKS = Gauge("triptych_worker_kv_cache_blocks", "Blocks of the cache, the null block included.")
KV_CACHE_BYTES = Gauge("triptych_worker_kv_cache_bytes", "Memory of the cache.")
WEIGHTS_BYTES = Gauge("triptych_worker_weights_bytes", "Memory of the weights.")
MAX_MODEL_LEN = Gauge("triptych_worker_max_model_len_tokens", "Longest prompt plus output.")
MAX_STEP_TOKENS = Gauge("triptych_worker_max_num_batched_tokens", "Most tokens that one step may compute.")


def set_limits(info: types_pb2.ModelInfo, weights_bytes: int) -> None:
    KV_CACHE_BLOCKS.set(info.num_blocks)
    KV_CACHE_BYTES.set(info.num_blocks * info.bytes_per_block)
    WEIGHTS_BYTES.set(weights_bytes)
    MAX_MODEL_LEN.set(info.max_model_len)
    MAX_STEP_TOKENS.set(info.max_num_batched_tokens)
