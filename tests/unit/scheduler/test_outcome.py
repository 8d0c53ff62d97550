"""How a request ended, in the log and in the metrics: each way of ending, told apart."""

import asyncio
from typing import Any

import pytest
import structlog
from prometheus_client import REGISTRY
from triptych.v1 import worker_pb2

from services.scheduler.active_request import ActiveRequest
from services.scheduler.core.request import FinishReason, Request
from services.scheduler.outcome import report_end, report_rejection
from services.scheduler.output_stream import OutputStream
from shared.errors import Reason, ServiceError


@pytest.fixture
def active() -> ActiveRequest:
    request = Request("g", "r", (1, 2, 3), max_tokens=9, seeds=(4, 5, 6), arrival_time=0.0)
    request.num_cached_tokens = 2
    request.sequences[0].output_token_ids = [7, 8]
    return ActiveRequest(request, worker_pb2.SamplingStep(), OutputStream(10_000))


def ended(active: ActiveRequest, error: BaseException | None, **how: Any) -> dict[str, Any]:
    """The one line of the log, whose outcome the metrics have counted once."""
    with structlog.testing.capture_logs() as lines:
        before = dict(counts())
        report_end(active, error, **({"drain_expired": False, "seconds_left": None} | how))
    (line,) = lines
    key = (line["event"].removeprefix("request_"), line["reason"] or "")
    assert counts() == before | {key: before.get(key, 0) + 1}
    assert line["log_level"] == "info"
    return dict(line)


def counts() -> dict[tuple[str, str], float]:
    (metric,) = [each for each in REGISTRY.collect() if each.name == "triptych_ended_requests"]
    return {
        (sample.labels["outcome"], sample.labels["reason"]): sample.value
        for sample in metric.samples
        if sample.name.endswith("_total")
    }


def test_a_finished_request_says_why_each_output_ended_and_how_much_it_was(active: ActiveRequest) -> None:
    active.finish_reasons = {1: FinishReason.LENGTH, 0: FinishReason.STOP, 2: FinishReason.ABORT}
    line = ended(active, None)
    assert (line["event"], line["code"], line["reason"]) == ("request_finished", "OK", None)
    assert line["finish_reasons"] == ["STOP", "LENGTH", "ABORT"]
    assert (line["generation_id"], line["prompt_tokens"], line["cached_tokens"]) == ("g", 3, 2)
    assert line["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("error", "how", "event", "reason", "code"),
    [
        (ServiceError(Reason.SLOW_READER, ""), {}, "request_failed", "SLOW_READER", "RESOURCE_EXHAUSTED"),
        (ServiceError(Reason.SEQUENCE_FAILED, ""), {}, "request_failed", "SEQUENCE_FAILED", "INTERNAL"),
        (KeyError(), {}, "request_failed", "BUG", "INTERNAL"),
        (asyncio.CancelledError(), {}, "request_cancelled", None, "CANCELLED"),
        (GeneratorExit(), {"seconds_left": 9.0}, "request_cancelled", None, "CANCELLED"),
        (GeneratorExit(), {"seconds_left": 0.0}, "request_failed", "DEADLINE", "DEADLINE_EXCEEDED"),
        # The caller's timer is the first to fire.
        (asyncio.CancelledError(), {"seconds_left": 0.05}, "request_failed", "DEADLINE", "DEADLINE_EXCEEDED"),
        (asyncio.CancelledError(), {"drain_expired": True}, "request_failed", "DRAINING", "UNAVAILABLE"),
    ],
)
def test_cancelled_and_failed_requests_differ_and_failures_have_a_reason(
    active: ActiveRequest, error: BaseException, how: Any, event: str, reason: str | None, code: str
) -> None:
    line = ended(active, error, **how)
    assert (line["event"], line["reason"], line["code"]) == (event, reason, code)


def test_a_rejection_is_counted_by_its_reason_and_left_to_the_interceptor_to_log() -> None:
    before = counts().get(("rejected", "QUEUE_FULL"), 0)
    with structlog.testing.capture_logs() as lines:
        report_rejection(ServiceError(Reason.QUEUE_FULL, "full"))
    assert counts()["rejected", "QUEUE_FULL"] == before + 1
    assert lines == []
