"""One bound for messages in both directions (G1)."""

from typing import Any

import grpc
import pytest
from triptych.v1 import scheduler_pb2, scheduler_pb2_grpc

from shared.errors import Reason, reason_in
from shared.grpc_client import create_channel
from shared.wire import MAX_MESSAGE_BYTES, Address
from tests.integration.shared.fakes import PLAIN, event, failure_of, serving

FIVE_MB = 5_000_000
TOO_MANY = MAX_MESSAGE_BYTES + 1
# A client of somebody else's, that does not know the bound.
UNBOUNDED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


async def abort(
    request: scheduler_pb2.AbortRequestRequest, context: Any
) -> scheduler_pb2.AbortRequestResponse:
    return scheduler_pb2.AbortRequestResponse(num_aborted=len(request.generation_id))


def status_of(size: int) -> Any:
    async def get_status(request: Any, context: Any) -> scheduler_pb2.GetStatusResponse:
        return scheduler_pb2.GetStatusResponse(workers=[scheduler_pb2.WorkerStatus(address="x" * size)])

    return get_status


async def test_five_megabytes_pass_in_both_directions() -> None:
    async with serving(AbortRequest=abort, GetStatus=status_of(FIVE_MB)) as fake:
        request = scheduler_pb2.AbortRequestRequest(generation_id="x" * FIVE_MB)
        assert (await fake.stub.AbortRequest(request)).num_aborted == FIVE_MB
        response = await fake.stub.GetStatus(scheduler_pb2.GetStatusRequest())
        assert len(response.workers[0].address) == FIVE_MB


@pytest.mark.parametrize("client_knows_the_bound", [True, False])
async def test_a_larger_request_is_refused_with_a_sentence(client_knows_the_bound: bool) -> None:
    async with (
        serving(AbortRequest=abort) as fake,
        grpc.aio.insecure_channel(str(fake.address), options=UNBOUNDED) as foreign,
    ):
        stub = fake.stub if client_knows_the_bound else scheduler_pb2_grpc.SchedulerServiceStub(foreign)
        request = scheduler_pb2.AbortRequestRequest(generation_id="x" * TOO_MANY)
        error = await failure_of(stub.AbortRequest(request))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "message larger than max" in (error.details() or "")
        assert str(MAX_MESSAGE_BYTES) in (error.details() or "")
        # The connection lives on.
        assert (
            await stub.AbortRequest(scheduler_pb2.AbortRequestRequest(generation_id="x"))
        ).num_aborted == 1


async def test_a_larger_response_is_refused_with_a_reason() -> None:
    async with serving(GetStatus=status_of(TOO_MANY)) as fake:
        error = await failure_of(fake.stub.GetStatus(scheduler_pb2.GetStatusRequest()))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert reason_in(error.trailing_metadata()) is Reason.MESSAGE_TOO_LARGE
        assert f"allowed: {MAX_MESSAGE_BYTES}" in (error.details() or "")


async def test_a_larger_event_ends_its_stream_and_its_handler() -> None:
    ended = []

    async def generate(request: Any, context: Any) -> Any:
        try:
            yield event("small")
            yield event("x" * TOO_MANY)
            raise AssertionError("not reached")
        finally:
            ended.append(True)

    async with serving(Generate=generate) as fake:
        error = await failure_of(fake.stub.Generate(scheduler_pb2.GenerateRequest()))
        assert reason_in(error.trailing_metadata()) is Reason.MESSAGE_TOO_LARGE
        assert ended == [True]


async def test_a_server_that_sends_more_than_the_bound_is_refused_by_our_client() -> None:
    server = grpc.aio.server(options=UNBOUNDED)
    fake_service = scheduler_pb2_grpc.SchedulerServiceServicer()
    fake_service.GetStatus = status_of(TOO_MANY)  # type: ignore[method-assign]
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(fake_service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with create_channel(Address("127.0.0.1", port), PLAIN) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            error = await failure_of(stub.GetStatus(scheduler_pb2.GetStatusRequest()))
    finally:
        await server.stop(None)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "Received message larger than max" in (error.details() or "")
