"""A caller's id and trace are taken over; what is missing or malformed is made."""

import re
from contextvars import copy_context

import pytest

from shared.request_context import enter_call, log_fields, outgoing_metadata, request_id, set_request_id

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


def after(*metadata: tuple[str, str | bytes], then: str = "") -> dict[str, str]:
    """What a call made while another is served passes on; each in a context of its own, as gRPC has it."""

    def serve() -> dict[str, str]:
        enter_call(metadata)
        if then:
            set_request_id(then)
        assert log_fields()["request_id"] == request_id()
        return dict(outgoing_metadata())

    return copy_context().run(serve)


def test_outside_a_call_nothing_is_passed_on() -> None:
    assert copy_context().run(outgoing_metadata) == []
    assert copy_context().run(request_id) == ""


def test_a_caller_s_request_id_is_passed_on() -> None:
    assert after(("x-request-id", "mine-1"))["x-request-id"] == "mine-1"


def test_the_message_s_own_id_wins_over_the_metadata_s() -> None:
    assert after(("x-request-id", "from-metadata"), then="from-message")["x-request-id"] == "from-message"


@pytest.mark.parametrize("bad", ["", "a b", "a\nb", "ümlaut", "x" * 129, "\x7f"])
def test_an_id_that_cannot_travel_is_replaced(bad: str) -> None:
    assert re.fullmatch("[0-9a-f]{32}", after(("x-request-id", bad))["x-request-id"])
    assert after(("x-request-id", "good"), then=bad)["x-request-id"] == "good"


def test_two_calls_without_an_id_get_two() -> None:
    assert after()["x-request-id"] != after()["x-request-id"]


def test_a_call_does_not_take_over_the_id_of_the_context_it_starts_in() -> None:
    def nested() -> str:
        enter_call([("x-request-id", "outer")])
        enter_call([])
        return request_id()

    assert copy_context().run(nested) != "outer"


def test_a_trace_is_taken_over_with_a_span_of_our_own() -> None:
    version, trace, span, flags = after(("traceparent", f"00-{TRACE}-{SPAN}-01"))["traceparent"].split("-")
    assert (version, trace, flags) == ("00", TRACE, "01")
    assert re.fullmatch("[0-9a-f]{16}", span)
    assert span != SPAN


@pytest.mark.parametrize(
    "bad",
    [
        "", "nonsense", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-01-extra", f"00-{TRACE.upper()}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01", f" 00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01\n",
    ],
)  # fmt: skip
def test_a_malformed_trace_is_replaced_by_a_new_one(bad: str) -> None:
    made = after(("traceparent", bad))["traceparent"]
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-00", made)
    assert TRACE not in made


def test_binary_metadata_is_not_taken_for_text() -> None:
    assert after(("x-request-id", b"bytes"))["x-request-id"] != "bytes"
