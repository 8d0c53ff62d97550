"""RenderService over real gRPC, with nothing else running."""

from collections.abc import Iterable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from triptych.v1 import render_pb2, types_pb2

from shared.errors import DETAILS_KEY, Reason, reason_in
from shared.tokenizer_files import tokenizer_fingerprint
from tests.integration.render.conftest import MakeRig
from tests.support.fake_scheduler import Response, admitted, chunk, finished
from tests.support.render_models import DEMO_MODEL, demo_tokenizer


def ids_of(text: str) -> list[int]:
    return demo_tokenizer().encode(text, add_special_tokens=False, field="text")


def field_of(error: grpc.aio.AioRpcError) -> str:
    """The field that google.rpc.BadRequest names."""
    bad_request = error_details_pb2.BadRequest()
    for key, value in error.trailing_metadata():
        if key == DETAILS_KEY:
            for detail in status_pb2.Status.FromString(value).details:
                detail.Unpack(bad_request)
    return bad_request.field_violations[0].field


def derender_messages(events: Iterable[Response], **text_params: Any) -> list[render_pb2.DerenderRequest]:
    params = render_pb2.DerenderParams(text_params=render_pb2.TextParams(**text_params))
    return [
        render_pb2.DerenderRequest(params=params),
        *(render_pb2.DerenderRequest(event=event) for event in events),
    ]


async def test_the_model_is_listed(make_rig: MakeRig) -> None:
    rig = await make_rig(None)
    [model] = (await rig.render.ListModels(render_pb2.ListModelsRequest())).models
    assert model == render_pb2.RenderModel(
        model="demo_model",
        tokenizer_fingerprint=tokenizer_fingerprint(DEMO_MODEL),
        max_model_len=2048,
        supports_chat=True,
    )


async def test_a_conversation_is_rendered_and_gets_a_request_id(make_rig: MakeRig) -> None:
    rig = await make_rig(None)
    request = render_pb2.RenderChatRequest(messages=[render_pb2.ChatMessage(role="user", content="hi")])
    made = await rig.render.RenderChat(request)
    from_metadata = await rig.render.RenderChat(request, metadata=[("x-request-id", "traced")])
    request.request_id = "mine"
    own = await rig.render.RenderChat(request, metadata=[("x-request-id", "traced")])
    assert made.generate_request.request_id
    assert from_metadata.generate_request.request_id == "traced"
    assert own.generate_request.request_id == "mine"
    assert own.generate_request.prompt_token_ids == made.generate_request.prompt_token_ids


async def test_text_goes_to_tokens_and_back(make_rig: MakeRig) -> None:
    rig = await make_rig(None)
    text = "Grüße, 你好 👩‍👩‍👧\n"
    tokens = (await rig.render.Tokenize(render_pb2.TokenizeRequest(text=text))).token_ids
    back = await rig.render.Detokenize(render_pb2.DetokenizeRequest(token_ids=tokens))
    assert back.text == text
    rendered = await rig.render.RenderCompletion(render_pb2.RenderCompletionRequest(text=text))
    assert rendered.generate_request.prompt_token_ids == tokens


async def test_an_error_carries_reason_field_and_sentence(make_rig: MakeRig) -> None:
    rig = await make_rig(None)
    request = render_pb2.RenderChatRequest(
        messages=[render_pb2.ChatMessage(role="user", extra_json='{"x": "\\ud800"}')]
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.render.RenderChat(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason_in(caught.value.trailing_metadata()) is Reason.INVALID_TEXT
    assert field_of(caught.value) == "messages[0].extra_json"
    assert "surrogate" in str(caught.value.details())


async def test_an_unknown_model_is_not_found(make_rig: MakeRig) -> None:
    rig = await make_rig(None)
    params = render_pb2.DerenderRequest(params=render_pb2.DerenderParams(model="other"))
    for call in (
        rig.render.Tokenize(render_pb2.TokenizeRequest(model="other")),
        rig.render.Detokenize(render_pb2.DetokenizeRequest(model="other")),
        rig.render.RenderChat(render_pb2.RenderChatRequest(model="other")),
        rig.render.Derender(iter([params])).read(),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_recorded_generation_is_derendered_in_one_go(make_rig: MakeRig) -> None:
    rig = await make_rig(None)
    events = [admitted(), chunk(ids_of("The answer is 42.")), finished()]
    responses = [each async for each in rig.render.Derender(iter(derender_messages(events, stop=["42"])))]
    assert "".join(each.event.delta.text for each in responses) == "The answer is "
    assert responses[-1].event.finished.stop_string == "42"


async def test_text_comes_back_before_the_next_event_is_sent(make_rig: MakeRig) -> None:
    rig = await make_rig(None)
    call = rig.render.Derender()
    for message in derender_messages([admitted()]):
        await call.write(message)
    for token_id in ids_of("one two three"):
        await call.write(render_pb2.DerenderRequest(event=chunk([token_id])))
        delta = (await call.read()).event.delta
        assert list(delta.token_ids) == [token_id]
    await call.write(render_pb2.DerenderRequest(event=finished(types_pb2.FINISH_REASON_ABORT)))
    assert (await call.read()).event.finished.finish_reason == types_pb2.FINISH_REASON_ABORT
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], Reason.STREAM_INCOMPLETE),
        (derender_messages([]), Reason.STREAM_INCOMPLETE),
        (derender_messages([admitted(), chunk([70])]), Reason.STREAM_INCOMPLETE),
        (derender_messages([admitted(seeds=(1, 2)), finished()]), Reason.STREAM_INCOMPLETE),
        (derender_messages([admitted()])[1:], Reason.PARAMETER_OUT_OF_RANGE),
        (derender_messages([])[:1] * 2, Reason.PARAMETER_OUT_OF_RANGE),
        ([render_pb2.DerenderRequest()], Reason.PARAMETER_OUT_OF_RANGE),
        (derender_messages([], stop=[""]), Reason.PARAMETER_OUT_OF_RANGE),
        (derender_messages([admitted(), chunk([70], output_index=1)]), Reason.PARAMETER_OUT_OF_RANGE),
    ],
)
async def test_a_derender_stream_out_of_order_is_refused(
    make_rig: MakeRig, messages: list[render_pb2.DerenderRequest], reason: Reason
) -> None:
    rig = await make_rig(None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in rig.render.Derender(iter(messages)):
            pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason_in(caught.value.trailing_metadata()) is reason


async def test_odd_ids_harm_nobody(make_rig: MakeRig) -> None:
    rig = await make_rig(None)
    odd = [2**32 - 1, 129_279, 1024, *range(100, 140)] * 20
    call = rig.render.Derender(iter(derender_messages([admitted(), chunk(odd), finished()])))
    text = "".join([each.event.delta.text async for each in call])
    known = [each for each in odd if each < 1024]
    one_shot = render_pb2.DetokenizeRequest(token_ids=known, skip_special_tokens=True)
    assert (await rig.render.Detokenize(one_shot)).text == text
