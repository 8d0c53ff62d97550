"""The metrics of the worker alone. shared/README.md lists them, and a test keeps that list true."""

from prometheus_client import Gauge, Histogram

from shared.metrics import STAGE_SECONDS

WORKER_STAGE = Histogram(
    "triptych_worker_stage_seconds",
    "One stage of one step: queue, prepare, forward, sample.",
    ["stage"],
    buckets=STAGE_SECONDS,
)
MODEL_LOAD = Gauge("triptych_model_load_seconds", "Time that loading the model took.")
