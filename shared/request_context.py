"""Request id and W3C trace context, which travel with a call through all services.

Both arrive as metadata, are context variables while the call is served, go out as metadata with every call
that it makes, and are logged with every line.
"""

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Protocol

REQUEST_ID_KEY = "x-request-id"
TRACEPARENT_KEY = "traceparent"

# Ids of zeros alone are invalid.
_TRACEPARENT = re.compile(r"00-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})")
# Goes into metadata and logs as it is: printable ASCII, bounded.
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

_request_id: ContextVar[str] = ContextVar("request_id", default="")
_traceparent: ContextVar[str] = ContextVar("traceparent", default="")


class HasRequestId(Protocol):
    request_id: str


def enter_call(metadata: Iterable[tuple[str, str | bytes]]) -> None:
    """Adopts the caller's id and trace, with a new span; creates whatever is missing or malformed."""
    values = {key: value for key, value in metadata if isinstance(value, str)}
    known = values.get(REQUEST_ID_KEY, "")
    # One draw for all ids, since each draw is a system call.
    made = secrets.token_hex(40)
    _request_id.set(known if _REQUEST_ID.fullmatch(known) else made[:32])
    match = _TRACEPARENT.fullmatch(values.get(TRACEPARENT_KEY, ""))
    trace_id, flags = (match[1], match[3]) if match else (made[32:64], "00")
    _traceparent.set(f"00-{trace_id}-{made[64:]}-{flags}")


def set_request_id(request_id: str) -> None:
    """Sets the id from here on: the id in a message wins over the metadata's."""
    if _REQUEST_ID.fullmatch(request_id):
        _request_id.set(request_id)


def take_request_id(message: HasRequestId) -> None:
    """The message's id becomes the call's; a message without one gets the call's."""
    set_request_id(message.request_id)
    message.request_id = message.request_id or request_id()


def request_id() -> str:
    """The id of the request being served; empty outside a call."""
    return _request_id.get()


def outgoing_metadata() -> Sequence[tuple[str, str]]:
    pairs = ((REQUEST_ID_KEY, _request_id.get()), (TRACEPARENT_KEY, _traceparent.get()))
    return [(key, value) for key, value in pairs if value]


def log_fields() -> Mapping[str, str]:
    """The fields of a line logged now; empty outside a call."""
    if not (traceparent := _traceparent.get()):
        return {}
    _, trace_id, span_id, _ = traceparent.split("-")
    return {"request_id": _request_id.get(), "trace_id": trace_id, "span_id": span_id}
