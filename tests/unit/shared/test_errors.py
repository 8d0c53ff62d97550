"""Each reason and its status, and the wire form read back."""

import re
from pathlib import Path

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2

from shared.errors import (
    DETAILS_KEY,
    DOMAIN,
    Reason,
    ServiceError,
    out_of_range,
    peer_error,
    reason_in,
    to_status,
)

PROTOS = Path(__file__).parents[3] / "protos" / "triptych" / "v1"


def details_of(status: status_pb2.Status) -> list[object]:
    """The details, unpacked; fails on a type that is none of the three."""
    kinds = (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo)
    unpacked = []
    for packed in status.details:
        detail = next(kind() for kind in kinds if packed.Is(kind.DESCRIPTOR))
        packed.Unpack(detail)
        unpacked.append(detail)
    return unpacked


def test_every_reason_has_the_status_of_an_error() -> None:
    assert all(reason.code in grpc.StatusCode and reason.code is not grpc.StatusCode.OK for reason in Reason)


def test_every_reason_is_spelled_as_it_is_named() -> None:
    assert all(reason.value == reason.name and re.fullmatch("[A-Z_]+", reason) for reason in Reason)


@pytest.mark.parametrize("proto", ["render", "scheduler", "worker"])
def test_the_contract_lists_each_reason_with_its_status(proto: str) -> None:
    text = (PROTOS / f"{proto}.proto").read_text()
    found = re.findall(r"^ *//   ([A-Z_]{4,}) +(.*(?:\n *// {10,}.*)*)", text, re.MULTILINE)
    assert found
    for code, reasons in found:
        for reason in re.findall(r"[A-Z]+(?:_[A-Z]+)*", re.sub(r"\([^)]*\)", "", reasons)):
            # The one exception: see ServiceError.code.
            is_fenced_session = (code, reason) == ("ABORTED", "FENCED")
            expected = "ABORTED" if is_fenced_session else Reason[reason].code.name
            assert code == expected, reason


@pytest.mark.parametrize("reason", list(Reason))
def test_the_reason_of_an_error_is_read_back_from_the_wire(reason: Reason) -> None:
    status = to_status(ServiceError(reason, "a sentence", key=3))
    assert status.code == code_pb2.Code.Value(reason.code.name)
    assert status.message == "a sentence"
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata={"key": "3"})
    assert details_of(status) == [info]
    assert reason_in([("other", "text"), (DETAILS_KEY, status.SerializeToString())]) is reason


def test_a_bad_field_is_named_with_value_and_allowed_range() -> None:
    error = out_of_range("sampling_params.top_p", 1.5, "(0, 1]")
    assert error.message == "sampling_params.top_p is 1.5; allowed: (0, 1]"
    info, bad_request = details_of(to_status(error))
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert dict(info.metadata) == {"value": "1.5", "allowed": "(0, 1]"}
    assert isinstance(bad_request, error_details_pb2.BadRequest)
    assert [violation.field for violation in bad_request.field_violations] == ["sampling_params.top_p"]


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(out_of_range("text", "x" * 1_000_000, "less").message) < 200


def test_a_retry_delay_is_carried() -> None:
    _, retry = details_of(to_status(ServiceError(Reason.QUEUE_FULL, "full", retry_after_seconds=1.5)))
    assert isinstance(retry, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToNanoseconds() == 1_500_000_000


def test_a_fenced_session_has_another_status_than_a_refused_one() -> None:
    aborted = ServiceError(Reason.FENCED, "taken over", code=grpc.StatusCode.ABORTED)
    assert to_status(aborted).code == code_pb2.ABORTED
    assert to_status(ServiceError(Reason.FENCED, "refused")).code == code_pb2.FAILED_PRECONDITION


@pytest.mark.parametrize(
    "error",
    [
        out_of_range("sampling_params.top_p", 1.5, "(0, 1]"),
        ServiceError(Reason.QUEUE_FULL, "full", retry_after_seconds=1.5, num_waiting=9),
        ServiceError(Reason.FENCED, "taken over", code=grpc.StatusCode.ABORTED),
        ServiceError(Reason.INVALID_TEXT, "x" * 5000, field="y" * 5000),
    ],
    ids=lambda error: error.reason,
)
def test_the_error_of_a_peer_is_passed_on_unchanged(error: ServiceError) -> None:
    status = to_status(error)
    received = peer_error([(DETAILS_KEY, status.SerializeToString())])
    assert received is not None
    assert (received.reason, received.code) == (error.reason, error.code)
    assert to_status(received) == status


def test_what_is_not_ours_has_no_reason() -> None:
    foreign = to_status(ServiceError(Reason.BUG, "x"))
    info = error_details_pb2.ErrorInfo(reason="BUG", domain="elsewhere")
    foreign.details[0].Pack(info)
    unknown = to_status(ServiceError(Reason.BUG, "x"))
    unknown.details[0].Pack(error_details_pb2.ErrorInfo(reason="LATER", domain=DOMAIN))
    for status in (foreign, unknown):
        assert reason_in([(DETAILS_KEY, status.SerializeToString())]) is None
    assert reason_in(None) is None
    assert reason_in([]) is None
