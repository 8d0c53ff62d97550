"""The errors that leave a service: exceptions here, a gRPC status with google.rpc.ErrorInfo on the wire.

Code raises `ServiceError` with a `Reason`; the table below says which status a reason is. The server
interceptor turns the exception into the status (`to_status`); `reason_in` reads it back on the caller's side.
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
    """ErrorInfo.reason: stable names that callers may branch on."""

    PARAMETER_OUT_OF_RANGE = "PARAMETER_OUT_OF_RANGE"
    PROMPT_TOO_LONG = "PROMPT_TOO_LONG"
    EMPTY_PROMPT = "EMPTY_PROMPT"
    INVALID_JSON = "INVALID_JSON"
    INVALID_TEXT = "INVALID_TEXT"
    TEMPLATE_FAILED = "TEMPLATE_FAILED"
    TOOLS_UNSUPPORTED = "TOOLS_UNSUPPORTED"
    STREAM_INCOMPLETE = "STREAM_INCOMPLETE"
    MALFORMED_MESSAGE = "MALFORMED_MESSAGE"
    MALFORMED_STEP = "MALFORMED_STEP"
    MALFORMED_SESSION = "MALFORMED_SESSION"
    UNKNOWN_MODEL = "UNKNOWN_MODEL"
    FINGERPRINT_MISMATCH = "FINGERPRINT_MISMATCH"
    NO_CHAT_TEMPLATE = "NO_CHAT_TEMPLATE"
    NO_SCHEDULER = "NO_SCHEDULER"
    FENCED = "FENCED"
    QUEUE_FULL = "QUEUE_FULL"
    SLOW_READER = "SLOW_READER"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    DEADLINE = "DEADLINE"
    NO_WORKER = "NO_WORKER"
    WORKER_LOST = "WORKER_LOST"
    SCHEDULER_LOST = "SCHEDULER_LOST"
    MODEL_LOADING = "MODEL_LOADING"
    DRAINING = "DRAINING"
    PEER_NOT_ALLOWED = "PEER_NOT_ALLOWED"
    SEQUENCE_FAILED = "SEQUENCE_FAILED"
    BUG = "BUG"


_CODES: dict[grpc.StatusCode, tuple[Reason, ...]] = {
    grpc.StatusCode.INVALID_ARGUMENT: (
        Reason.PARAMETER_OUT_OF_RANGE,
        Reason.PROMPT_TOO_LONG,
        Reason.EMPTY_PROMPT,
        Reason.INVALID_JSON,
        Reason.INVALID_TEXT,
        Reason.TEMPLATE_FAILED,
        Reason.TOOLS_UNSUPPORTED,
        Reason.STREAM_INCOMPLETE,
        Reason.MALFORMED_MESSAGE,
        Reason.MALFORMED_STEP,
        Reason.MALFORMED_SESSION,
    ),
    grpc.StatusCode.NOT_FOUND: (Reason.UNKNOWN_MODEL,),
    grpc.StatusCode.FAILED_PRECONDITION: (
        Reason.FINGERPRINT_MISMATCH,
        Reason.NO_CHAT_TEMPLATE,
        Reason.NO_SCHEDULER,
        Reason.FENCED,
    ),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (
        Reason.QUEUE_FULL,
        Reason.SLOW_READER,
        Reason.OUT_OF_MEMORY,
        Reason.MESSAGE_TOO_LARGE,
    ),
    grpc.StatusCode.DEADLINE_EXCEEDED: (Reason.DEADLINE,),
    grpc.StatusCode.UNAVAILABLE: (
        Reason.NO_WORKER,
        Reason.WORKER_LOST,
        Reason.SCHEDULER_LOST,
        Reason.MODEL_LOADING,
        Reason.DRAINING,
    ),
    grpc.StatusCode.PERMISSION_DENIED: (Reason.PEER_NOT_ALLOWED,),
    grpc.StatusCode.INTERNAL: (Reason.SEQUENCE_FAILED, Reason.BUG),
}
STATUS_CODE: dict[Reason, grpc.StatusCode] = {
    reason: code for code, reasons in _CODES.items() for reason in reasons
}

_CODE_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


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
        # The table's status, but for one case: a session that a later one ends is ABORTED with reason FENCED.
        self.code = code or STATUS_CODE[reason]
        self.metadata = {key: _shorten(value, _MAX_FIELD_BYTES) for key, value in metadata.items()}


class PeerError(ServiceError):
    """The error that a peer ended a call with. Our own caller gets it unchanged."""

    def __init__(self, reason: Reason, status: status_pb2.Status) -> None:
        super().__init__(reason, status.message, code=_CODE_BY_NUMBER[status.code])
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
                    return PeerError(Reason(info.reason), status)
    return None


def reason_in(trailing_metadata: Iterable[tuple[str, str | bytes]] | None) -> Reason | None:
    """The reason that a failed call carries; None if it has none of ours."""
    error = peer_error(trailing_metadata)
    return error.reason if error else None


def _shorten(value: object, max_bytes: int) -> str:
    """Its text, of at most so many bytes of UTF-8 and a note of what was cut."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    data = text.encode(errors="replace")
    if len(data) <= max_bytes:
        return text
    return f"{data[:max_bytes].decode(errors='ignore')}… ({len(text)} characters)"
