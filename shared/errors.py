"""The errors that leave a service: exceptions here, a gRPC status with google.rpc.ErrorInfo on the wire.

Code raises `ServiceError` with a `Reason`, which has a status code. The server interceptor turns the
exception into the status (`to_status`); `reason_in` reads it back on the caller's side.
Any other exception is our own bug: INTERNAL, without internals.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

DOMAIN = "triptych"
DETAILS_KEY = "grpc-status-details-bin"

# A call's last metadata may have 8 KiB, or the client sees another error. A message is there three times:
# percent-encoded, where a byte may take three characters, and twice in the details, in base64.
_MAX_MESSAGE_BYTES = 1000
_MAX_FIELD_BYTES = 200
_MAX_VALUE_BYTES = 80


class Reason(StrEnum):
    """ErrorInfo.reason: stable names that callers may branch on, each with its status."""

    code: grpc.StatusCode

    def __new__(cls, name: str, code: grpc.StatusCode) -> "Reason":
        reason = str.__new__(cls, name)
        reason._value_ = name
        reason.code = code
        return reason

    PARAMETER_OUT_OF_RANGE = "PARAMETER_OUT_OF_RANGE", grpc.StatusCode.INVALID_ARGUMENT
    PROMPT_TOO_LONG = "PROMPT_TOO_LONG", grpc.StatusCode.INVALID_ARGUMENT
    EMPTY_PROMPT = "EMPTY_PROMPT", grpc.StatusCode.INVALID_ARGUMENT
    INVALID_JSON = "INVALID_JSON", grpc.StatusCode.INVALID_ARGUMENT
    INVALID_TEXT = "INVALID_TEXT", grpc.StatusCode.INVALID_ARGUMENT
    TEMPLATE_FAILED = "TEMPLATE_FAILED", grpc.StatusCode.INVALID_ARGUMENT
    TOOLS_UNSUPPORTED = "TOOLS_UNSUPPORTED", grpc.StatusCode.INVALID_ARGUMENT
    STREAM_INCOMPLETE = "STREAM_INCOMPLETE", grpc.StatusCode.INVALID_ARGUMENT
    MALFORMED_MESSAGE = "MALFORMED_MESSAGE", grpc.StatusCode.INVALID_ARGUMENT
    MALFORMED_STEP = "MALFORMED_STEP", grpc.StatusCode.INVALID_ARGUMENT
    MALFORMED_SESSION = "MALFORMED_SESSION", grpc.StatusCode.INVALID_ARGUMENT
    UNKNOWN_MODEL = "UNKNOWN_MODEL", grpc.StatusCode.NOT_FOUND
    FINGERPRINT_MISMATCH = "FINGERPRINT_MISMATCH", grpc.StatusCode.FAILED_PRECONDITION
    NO_CHAT_TEMPLATE = "NO_CHAT_TEMPLATE", grpc.StatusCode.FAILED_PRECONDITION
    NO_SCHEDULER = "NO_SCHEDULER", grpc.StatusCode.FAILED_PRECONDITION
    FENCED = "FENCED", grpc.StatusCode.FAILED_PRECONDITION
    QUEUE_FULL = "QUEUE_FULL", grpc.StatusCode.RESOURCE_EXHAUSTED
    SLOW_READER = "SLOW_READER", grpc.StatusCode.RESOURCE_EXHAUSTED
    OUT_OF_MEMORY = "OUT_OF_MEMORY", grpc.StatusCode.RESOURCE_EXHAUSTED
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE", grpc.StatusCode.RESOURCE_EXHAUSTED
    DEADLINE = "DEADLINE", grpc.StatusCode.DEADLINE_EXCEEDED
    NO_WORKER = "NO_WORKER", grpc.StatusCode.UNAVAILABLE
    WORKER_LOST = "WORKER_LOST", grpc.StatusCode.UNAVAILABLE
    SCHEDULER_LOST = "SCHEDULER_LOST", grpc.StatusCode.UNAVAILABLE
    MODEL_LOADING = "MODEL_LOADING", grpc.StatusCode.UNAVAILABLE
    DRAINING = "DRAINING", grpc.StatusCode.UNAVAILABLE
    PEER_NOT_ALLOWED = "PEER_NOT_ALLOWED", grpc.StatusCode.PERMISSION_DENIED
    SEQUENCE_FAILED = "SEQUENCE_FAILED", grpc.StatusCode.INTERNAL
    BUG = "BUG", grpc.StatusCode.INTERNAL


CODE_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


class ServiceError(Exception):
    """An error that a caller sees as it is: a reason, a sentence and, where a field is at fault, its path.

    Texts that are too long for a status are cut.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        field: str = "",
        retry_after_seconds: float | None = None,
        code: grpc.StatusCode | None = None,
        **metadata: object,
    ) -> None:
        self.message = _shorten(message, _MAX_MESSAGE_BYTES)
        super().__init__(self.message)
        self.reason = reason
        self.field = _shorten(field, _MAX_FIELD_BYTES)
        self.retry_after_seconds = retry_after_seconds
        # The reason's code, but for one case: a session that a later one ends is ABORTED with reason FENCED.
        self.code = code or reason.code
        self.metadata = {key: _shorten(value, _MAX_FIELD_BYTES) for key, value in metadata.items()}


class PeerError(ServiceError):
    """The error that a peer ended a call with. Our own caller gets it unchanged."""

    def __init__(self, reason: Reason, status: status_pb2.Status) -> None:
        super().__init__(reason, status.message, code=CODE_BY_NUMBER[status.code])
        self.status = status


def out_of_range(field: str, value: object, allowed: str) -> ServiceError:
    """The error for a bad parameter; names the field's path, the value and what is allowed."""
    return ServiceError(
        Reason.PARAMETER_OUT_OF_RANGE,
        f"{_shorten(field, _MAX_FIELD_BYTES)} is {_shorten(value, _MAX_VALUE_BYTES)}; allowed: {allowed}",
        field=field,
        value=_shorten(value, _MAX_VALUE_BYTES),
        allowed=allowed,
    )


def to_status(error: ServiceError) -> status_pb2.Status:
    """The wire form: ErrorInfo always, BadRequest if a field is at fault, RetryInfo if a retry may help."""
    if isinstance(error, PeerError):
        return error.status
    details: list[Any] = [
        error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    ]
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_seconds * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = [any_pb2.Any() for _ in details]
    for target, detail in zip(packed, details, strict=True):
        target.Pack(detail)
    return status_pb2.Status(code=code_pb2.Code.Value(error.code.name), message=error.message, details=packed)


def peer_error(trailing_metadata: Iterable[tuple[str, str | bytes]] | None) -> "PeerError | None":
    """The error of ours that a call to a peer failed with; None if it has none (a broken connection, say)."""
    info = error_details_pb2.ErrorInfo()
    for key, value in trailing_metadata or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            status = status_pb2.Status.FromString(value)
            for detail in status.details:
                if detail.Unpack(info) and info.domain == DOMAIN and info.reason in Reason.__members__:
                    return PeerError(Reason[info.reason], status)
    return None


def reason_in(trailing_metadata: Iterable[tuple[str, str | bytes]] | None) -> Reason | None:
    """The reason that a failed call carries; None if it has none of ours."""
    error = peer_error(trailing_metadata)
    return error.reason if error else None


def _shorten(value: object, max_bytes: int) -> str:
    """The text, cut to `max_bytes` of UTF-8, with its full length if it was cut."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    data = text.encode(errors="replace")
    if len(data) <= max_bytes:
        return text
    return f"{data[:max_bytes].decode(errors='ignore')}… ({len(text)} characters)"
