"""Request id and trace pass through a service to the calls that it makes."""

from typing import Any

from triptych.v1 import scheduler_pb2

from shared.request_context import request_id, set_request_id
from tests.integration.shared.fakes import get_status, serving

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
REQUEST = scheduler_pb2.GetStatusRequest()


async def test_two_services_and_a_client_share_id_and_trace() -> None:
    seen: list[dict[str, str]] = []

    async def last(request: Any, context: Any) -> scheduler_pb2.GetStatusResponse:
        seen.append(dict(context.invocation_metadata()))
        return await get_status(request, context)

    async with serving(GetStatus=last) as second:

        async def pass_on(request: Any, context: Any) -> scheduler_pb2.GetStatusResponse:
            response: scheduler_pb2.GetStatusResponse = await second.stub.GetStatus(request)
            return response

        async with serving(GetStatus=pass_on) as first:
            metadata = [("x-request-id", "mine"), ("traceparent", TRACEPARENT)]
            await first.stub.GetStatus(REQUEST, metadata=metadata)
            await first.stub.GetStatus(REQUEST)
    assert seen[0]["x-request-id"] == "mine"
    assert seen[0]["traceparent"].split("-")[1] == TRACEPARENT.split("-")[1]
    assert seen[0]["traceparent"].split("-")[2] != TRACEPARENT.split("-")[2]
    # The second call had none of its own, and takes none of the first's.
    assert seen[1]["x-request-id"] != "mine"
    assert seen[1]["traceparent"].split("-")[1] != TRACEPARENT.split("-")[1]


async def test_the_id_in_the_message_is_what_is_passed_on() -> None:
    seen: list[str] = []

    async def last(request: Any, context: Any) -> scheduler_pb2.GetStatusResponse:
        seen.append(request_id())
        return await get_status(request, context)

    async with serving(GetStatus=last) as second:

        async def pass_on(request: Any, context: Any) -> scheduler_pb2.GetStatusResponse:
            set_request_id("from-the-message")
            response: scheduler_pb2.GetStatusResponse = await second.stub.GetStatus(request)
            return response

        async with serving(GetStatus=pass_on) as first:
            await first.stub.GetStatus(REQUEST, metadata=[("x-request-id", "from-metadata")])
    assert seen == ["from-the-message"]
