"""The metrics of render alone. shared/README.md lists them, and a test keeps that list true."""

from prometheus_client import Histogram

from shared.metrics import STAGE_SECONDS

RENDER_STAGE = Histogram(
    "triptych_render_stage_seconds", "CPU time of one stage of one request.", ["stage"], buckets=STAGE_SECONDS
)
