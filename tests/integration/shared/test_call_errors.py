"""What a handler raises, and what the caller sees."""

import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import structlog
from google.rpc import error_details_pb2, status_pb2
from triptych.v1 import scheduler_pb2

from shared.errors import DETAILS_KEY, Reason, ServiceError, out_of_range, reason_in
from shared.request_context import log_fields, set_request_id
from tests.integration.shared.fakes import (
    ABORT,
    GENERATE,
    GET_STATUS,
    event,
    failure_of,
    metric,
    serving,
    until,
)

STATUS_REQUEST = scheduler_pb2.GetStatusRequest()


def raising(error: Exception) -> dict[str, Any]:
    """Handlers of both kinds; the stream fails after its first event."""

    async def get_status(request: Any, context: Any) -> scheduler_pb2.GetStatusResponse:
        raise error

    async def generate(request: Any, context: Any) -> Any:
        yield event()
        raise error

    return {"GetStatus": get_status, "Generate": generate}


async def failures(error: Exception) -> list[grpc.aio.AioRpcError]:
    async with serving(**raising(error)) as fake:
        return [
            await failure_of(fake.stub.GetStatus(STATUS_REQUEST)),
            await failure_of(fake.stub.Generate(scheduler_pb2.GenerateRequest())),
        ]


@pytest.mark.parametrize("reason", list(Reason))
async def test_a_service_error_arrives_with_its_status_reason_and_sentence(reason: Reason) -> None:
    for error in await failures(ServiceError(reason, "a sentence")):
        assert error.code() is reason.code
        assert error.details() == "a sentence"
        assert reason_in(error.trailing_metadata()) is reason


async def test_a_bad_field_arrives_with_its_path() -> None:
    for error in await failures(out_of_range("sampling_params.top_p", 2, "(0, 1]")):
        metadata = dict(error.trailing_metadata())
        violations = error_details_pb2.BadRequest()
        status = status_pb2.Status.FromString(metadata[DETAILS_KEY])
        assert any(detail.Unpack(violations) for detail in status.details)
        assert [violation.field for violation in violations.field_violations] == ["sampling_params.top_p"]


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
async def test_a_refused_request_leaves_nothing_in_memory_though_no_collection_runs() -> None:
    class Work:
        pass

    alive: list[weakref.ref[Work]] = []

    def refuse(_request: Any) -> None:
        work = Work()
        alive.append(weakref.ref(work))
        try:
            int(str(work))
        except ValueError:
            raise ServiceError(Reason.INVALID_JSON, "no") from None

    async def get_status(request: Any, context: Any) -> scheduler_pb2.GetStatusResponse:
        refuse(request)
        raise AssertionError

    async def generate(request: Any, context: Any) -> Any:
        refuse(request)
        yield event()

    num_bytes = 4_000_000
    async with serving(GetStatus=get_status, Generate=generate) as fake:
        request = scheduler_pb2.GenerateRequest(request_id="x" * num_bytes)
        await failure_of(fake.stub.Generate(request))  # what the first call makes, stays
        await failure_of(fake.stub.GetStatus(STATUS_REQUEST))
        tracemalloc.start()
        try:
            for _ in range(5):
                await failure_of(fake.stub.Generate(request))
                await failure_of(fake.stub.GetStatus(STATUS_REQUEST))
            await until(lambda: tracemalloc.get_traced_memory()[0] < num_bytes)
        finally:
            tracemalloc.stop()
        await until(lambda: not any(work() for work in alive))


@pytest.mark.parametrize("char", ["x", "\n", "汉", "👍"])
async def test_an_error_arrives_however_long_its_texts_are(char: str) -> None:
    long = char * 100_000
    long_error = ServiceError(Reason.INVALID_TEXT, long, field=long, retry_after_seconds=1, a=long, b=long)
    for raised in (long_error, out_of_range(long, long, "a sentence")):
        for error in await failures(raised):
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert reason_in(error.trailing_metadata()) is raised.reason
            assert (error.details() or "").startswith(char)


async def test_a_bug_is_internal_says_nothing_of_its_inside_and_is_logged_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with structlog.testing.capture_logs() as lines:
        for error in await failures(KeyError("secret")):
            assert error.code() is grpc.StatusCode.INTERNAL
            assert reason_in(error.trailing_metadata()) is Reason.BUG
            assert "secret" not in repr(error)
            assert "KeyError" not in repr(error)
    bugs = [line for line in lines if line["event"] == "bug"]
    assert [line["method"] for line in bugs] == [GET_STATUS, GENERATE]
    assert all(line["error"] == "KeyError" for line in bugs)
    # Neither does gRPC log it a second time.
    assert "Traceback" not in capfd.readouterr().err


async def test_a_bug_names_the_request_that_the_logs_have_it_under() -> None:
    async with serving(**raising(ValueError())) as fake:
        error = await failure_of(fake.stub.GetStatus(STATUS_REQUEST, metadata=[("x-request-id", "id-7")]))
    assert "id-7" in (error.details() or "")


async def test_a_status_that_a_handler_aborts_with_stays_as_it_is() -> None:
    async def get_status(request: Any, context: Any) -> scheduler_pb2.GetStatusResponse:
        await context.abort(grpc.StatusCode.NOT_FOUND, "not here", (("key", "value"),))
        raise AssertionError("not reached")

    before = metric("triptych_server_requests_total", method=GET_STATUS, code="NOT_FOUND")
    async with serving(GetStatus=get_status) as fake:
        error = await failure_of(fake.stub.GetStatus(STATUS_REQUEST))
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "not here")
    assert dict(error.trailing_metadata())["key"] == "value"
    assert metric("triptych_server_requests_total", method=GET_STATUS, code="NOT_FOUND") == before + 1


async def test_bytes_that_are_no_message_are_the_caller_s_fault() -> None:
    async def not_reached(request: Any, context: Any) -> Any:
        raise AssertionError("not reached")
        yield

    before = metric("triptych_server_requests_total", method=ABORT, code="INVALID_ARGUMENT")
    async with serving(AbortRequest=not_reached, Generate=not_reached) as fake:
        for start in (
            fake.channel.unary_unary(ABORT, bytes, bytes),
            fake.channel.unary_stream(GENERATE, bytes, bytes),
        ):
            error = await failure_of(start(b"\xff\xff\xff"))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert reason_in(error.trailing_metadata()) is Reason.MALFORMED_MESSAGE
            assert "DecodeError" not in repr(error)
    assert metric("triptych_server_requests_total", method=ABORT, code="INVALID_ARGUMENT") == before + 1


async def test_a_handler_that_answers_with_the_wrong_type_is_a_bug() -> None:
    async def get_status(request: Any, context: Any) -> Any:
        return None

    async with serving(GetStatus=get_status) as fake:
        error = await failure_of(fake.stub.GetStatus(STATUS_REQUEST))
    assert reason_in(error.trailing_metadata()) is Reason.BUG


SECRET = "what nobody may read in a log"


@pytest.mark.parametrize(
    "error",
    [
        out_of_range("sampling_params.top_p", SECRET, "(0, 1]"),
        ServiceError(Reason.QUEUE_FULL, SECRET, retry_after_seconds=1, detail=SECRET),
        ServiceError(Reason.DRAINING, SECRET),
        ServiceError(Reason.INVALID_TEXT, SECRET, field="messages[0].content"),
    ],
    ids=lambda error: error.reason,
)
async def test_a_rejected_call_is_one_line_with_its_reason_and_without_any_value(error: ServiceError) -> None:
    async def generate(request: Any, context: Any) -> Any:
        set_request_id(request.request_id)
        raise error
        yield

    with structlog.testing.capture_logs(processors=[with_call]) as lines:
        async with serving(Generate=generate) as fake:
            await failure_of(fake.stub.Generate(scheduler_pb2.GenerateRequest(request_id="id-8")))
    (line,) = (line for line in lines if line["event"] == "rejected")
    assert (line["log_level"], line["method"]) == ("info", GENERATE)
    assert (line["code"], line["reason"]) == (error.code.name, error.reason)
    assert line.get("field", "") == error.field
    assert line["request_id"] == "id-8"
    assert len(line["trace_id"]) == 32
    assert SECRET not in repr(line)


async def test_a_malformed_message_and_a_call_during_shutdown_are_rejections_too() -> None:
    with structlog.testing.capture_logs() as lines:
        async with serving() as fake:
            await failure_of(fake.channel.unary_unary(ABORT, bytes, bytes)(b"\xff\xff\xff"))
            fake.server.drain.draining = True
            await failure_of(fake.stub.GetStatus(STATUS_REQUEST))
    reasons = [line["reason"] for line in lines if line["event"] == "rejected"]
    assert reasons == [Reason.MALFORMED_MESSAGE, Reason.DRAINING]


async def test_a_call_that_fails_after_its_first_message_was_not_rejected() -> None:
    with structlog.testing.capture_logs() as lines:
        async with serving(**raising(ServiceError(Reason.WORKER_LOST, "gone"))) as fake:
            await failure_of(fake.stub.Generate(scheduler_pb2.GenerateRequest()))
    assert not [line for line in lines if line["event"] == "rejected"]


def with_call(_logger: Any, _name: str, event: Any) -> Any:
    """As the processor of shared/log.py does."""
    return {**log_fields(), **event}
