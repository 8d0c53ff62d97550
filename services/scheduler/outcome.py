"""How each request ended: one line in the log, one count in the metrics."""

import asyncio
from time import monotonic

import grpc

from services.scheduler import metrics
from services.scheduler.active_request import ActiveRequest
from shared.errors import Reason, ServiceError
from shared.log import get_logger

# A caller's own timer fires before ours by the time that its message took: a call that is cancelled with no
# more than this left has passed its deadline.
_DEADLINE_TOLERANCE_SECONDS = 0.1

_log = get_logger()


def report_rejection(error: ServiceError) -> None:
    """A request that was not admitted. (The server's interceptor logs it, as it does every rejected call.)"""
    metrics.ENDED_REQUESTS.labels("rejected", error.reason).inc()


def report_end(
    active: ActiveRequest, error: BaseException | None, *, drain_expired: bool, seconds_left: float | None
) -> None:
    """An admitted request whose call ends with `error`, before what is left of it is aborted.

    drain_expired: running calls are being ended. seconds_left: until the deadline; None if there is none.
    """
    outcome, reason, code = _outcome(error, drain_expired, seconds_left)
    metrics.ENDED_REQUESTS.labels(outcome, reason or "").inc()
    request = active.request
    _log.info(
        f"request_{outcome}",
        generation_id=request.generation_id,
        code=code.name,
        reason=reason and reason.value,
        finish_reasons=[active.finish_reasons[index].name for index in sorted(active.finish_reasons)],
        prompt_tokens=len(request.prompt_token_ids),
        cached_tokens=request.num_cached_tokens,
        completion_tokens=request.completion_tokens,
        seconds=round(monotonic() - request.arrival_time, 4),
    )


def _outcome(
    error: BaseException | None, drain_expired: bool, seconds_left: float | None
) -> tuple[str, Reason | None, grpc.StatusCode]:
    if error is None:
        return "finished", None, grpc.StatusCode.OK
    if isinstance(error, ServiceError):
        return "failed", error.reason, error.code
    if not isinstance(error, asyncio.CancelledError | GeneratorExit):
        reason = Reason.BUG
    elif drain_expired:
        reason = Reason.DRAINING
    elif seconds_left is not None and seconds_left <= _DEADLINE_TOLERANCE_SECONDS:
        reason = Reason.DEADLINE
    else:
        return "cancelled", None, grpc.StatusCode.CANCELLED
    return "failed", reason, reason.code
