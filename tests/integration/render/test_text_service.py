"""TextService before a scripted scheduler: what reaches the client, and what reaches the scheduler."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from triptych.v1 import render_pb2, types_pb2

from services.render.tokenizer.tokenizer import Tokenizer
from shared.errors import Reason, ServiceError, reason_in
from tests.integration.render.conftest import MakeRig
from tests.support.fake_scheduler import (
    Generation,
    Response,
    aborted,
    admitted,
    chunk,
    finished,
    scheduled,
)
from tests.support.render_models import demo_tokenizer

MESSAGES = [render_pb2.ChatMessage(role="user", content="Hello!")]


def chat(**fields: Any) -> render_pb2.ChatRequest:
    """A request to chat."""
    return render_pb2.ChatRequest(request=render_pb2.RenderChatRequest(messages=MESSAGES, **fields))


def ids_of(text: str, tokenizer: Tokenizer | None = None) -> list[int]:
    """A text's tokens."""
    return (tokenizer or demo_tokenizer()).encode(text, add_special_tokens=False, field="text")


async def collect(call: Any) -> tuple[str, list[int], list[render_pb2.TextFinished]]:
    """Text, token ids and ends of a whole call, over all outputs; a call that hangs fails."""
    text, token_ids, ends = "", [], []
    async with asyncio.timeout(20):
        while (response := await call.read()) is not grpc.aio.EOF:
            event = response.event
            text += event.delta.text
            token_ids += event.delta.token_ids
            if event.HasField("finished"):
                ends.append(event.finished)
    return text, token_ids, ends


async def until(condition: Callable[[], bool]) -> None:
    """Returns when the condition holds; fails after five seconds."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 what is waited for has no event
            await asyncio.sleep(0.01)


async def one_token_at_a_time(generation: Generation) -> AsyncIterator[Response]:
    yield admitted()
    yield scheduled(cached_tokens=4)
    for token_id in ids_of("The answer is 42, and no other."):
        yield chunk([token_id])
    yield finished(types_pb2.FINISH_REASON_STOP, stop_token_id=1)


async def test_a_chat_is_rendered_generated_and_streamed_as_text(make_rig: MakeRig) -> None:
    rig = await make_rig(one_token_at_a_time)
    text, token_ids, [end] = await collect(rig.text.Chat(chat(request_id="mine")))
    assert text == "The answer is 42, and no other."
    assert token_ids == ids_of(text)
    assert end.finish_reason == types_pb2.FINISH_REASON_STOP
    assert end.stop_token_id == 1
    assert (end.usage.prompt_tokens, end.usage.cached_tokens) == (10, 4)
    assert end.usage.completion_tokens == len(token_ids) + 1
    assert end.seed == 7
    assert end.timings.total_seconds == 1.5
    assert 0 < end.render_seconds < end.total_seconds
    assert rig.scheduler is not None
    [generation] = rig.scheduler.generations
    assert generation.request.request_id == "mine"
    assert rig.tokenizer.decode(list(generation.request.prompt_token_ids), skip_special_tokens=False) == (
        "<｜begin▁of▁sentence｜><｜User｜>Hello!<｜Assistant｜>"
    )


async def test_a_stop_string_aborts_its_output_and_cuts_text_tokens_and_counts(make_rig: MakeRig) -> None:
    async def script(generation: Generation) -> AsyncIterator[Response]:
        yield admitted()
        yield scheduled()
        for token_id in ids_of("The answer is 42."):
            yield chunk([token_id])
        while not generation.aborted[0].is_set():
            yield chunk(ids_of(" More and more."))
            await asyncio.sleep(0.001)
        yield aborted()

    rig = await make_rig(script)
    request = chat(text_params=render_pb2.TextParams(stop=["42", "never"]))
    text, token_ids, [end] = await collect(rig.text.Chat(request))
    assert text == "The answer is "
    completing = next(
        count for count in range(1, 100) if "42" in rig.tokenizer.decode(
            ids_of("The answer is 42.")[:count], skip_special_tokens=True
        )
    )  # fmt: skip
    assert token_ids == ids_of("The answer is 42.")[:completing]
    assert end.usage.completion_tokens == completing
    assert (end.finish_reason, end.stop_string) == (types_pb2.FINISH_REASON_STOP, "42")
    assert end.timings.total_seconds == 1.5, "the timings are those of the aborted output"
    assert rig.scheduler is not None
    [abort] = rig.scheduler.aborts
    assert abort.generation_id == "generation-1"
    assert abort.HasField("output_index"), "unset would abort every output"
    assert rig.scheduler.num_live == 0


async def test_a_stop_string_ends_one_output_and_leaves_the_other_running(make_rig: MakeRig) -> None:
    async def script(generation: Generation) -> AsyncIterator[Response]:
        yield admitted(seeds=(3, 4))
        yield scheduled()
        yield chunk(ids_of("first"), output_index=0)
        yield chunk(ids_of("STOP here"), output_index=1)
        await generation.aborted[1].wait()
        yield chunk(ids_of("dropped"), output_index=1)
        yield aborted(output_index=1)
        yield chunk(ids_of(" goes on"), output_index=0)
        yield finished(output_index=0)

    rig = await make_rig(script)
    request = chat(
        text_params=render_pb2.TextParams(stop=["STOP"]), sampling_params=types_pb2.SamplingParams(n=2)
    )
    text, _, ends = await collect(rig.text.Chat(request))
    assert text == "first goes on"
    assert [end.seed for end in ends] == [4, 3]
    assert [end.finish_reason for end in ends] == [
        types_pb2.FINISH_REASON_STOP,
        types_pb2.FINISH_REASON_LENGTH,
    ]


async def test_a_plain_prompt_is_completed(make_rig: MakeRig) -> None:
    rig = await make_rig(one_token_at_a_time)
    request = render_pb2.CompleteRequest(request=render_pb2.RenderCompletionRequest(text="Once upon"))
    text, _, _ = await collect(rig.text.Complete(request))
    assert text == "The answer is 42, and no other."


async def test_a_refusal_of_the_scheduler_is_passed_on_whole(make_rig: MakeRig) -> None:
    async def refuse(_generation: Generation) -> AsyncIterator[Response]:
        raise ServiceError(Reason.QUEUE_FULL, "the queue is full", retry_after_seconds=2, num_waiting=9)
        yield

    rig = await make_rig(refuse)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(rig.text.Chat(chat()))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.details() == "the queue is full"
    assert reason_in(caught.value.trailing_metadata()) is Reason.QUEUE_FULL
    details = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
    assert b"RetryInfo" in details
    assert b"num_waiting" in details


async def test_a_failure_in_mid_stream_is_passed_on_after_the_text_so_far(make_rig: MakeRig) -> None:
    async def fail(_generation: Generation) -> AsyncIterator[Response]:
        yield admitted()
        yield chunk(ids_of("partial"))
        raise ServiceError(Reason.WORKER_LOST, "the worker is gone")

    rig = await make_rig(fail)
    call = rig.text.Chat(chat())
    assert (await call.read()).event.delta.text == "partial"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call)
    assert reason_in(caught.value.trailing_metadata()) is Reason.WORKER_LOST


async def test_a_scheduler_that_vanishes_is_never_a_clean_end(make_rig: MakeRig) -> None:
    async def hang(_generation: Generation) -> AsyncIterator[Response]:
        yield admitted()
        yield chunk(ids_of("partial"))
        await asyncio.sleep(60)

    rig = await make_rig(hang)
    call = rig.text.Chat(chat())
    await call.read()
    assert rig.scheduler_server is not None
    await rig.scheduler_server.stop(None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert reason_in(caught.value.trailing_metadata()) is Reason.SCHEDULER_LOST


async def test_a_call_that_ends_before_its_outputs_do_is_never_a_clean_end(make_rig: MakeRig) -> None:
    async def end_early(_generation: Generation) -> AsyncIterator[Response]:
        yield admitted(seeds=(1, 2))
        yield chunk(ids_of("partial"))
        yield finished(output_index=0)

    rig = await make_rig(end_early)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(rig.text.Chat(chat()))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert reason_in(caught.value.trailing_metadata()) is Reason.SCHEDULER_LOST


async def test_a_scheduler_that_is_away_is_unavailable_and_noticed(make_rig: MakeRig) -> None:
    rig = await make_rig(one_token_at_a_time)
    assert rig.scheduler_server is not None
    assert rig.scheduler_client is not None
    await rig.scheduler_server.stop(None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(rig.text.Chat(chat()))
    assert reason_in(caught.value.trailing_metadata()) is Reason.SCHEDULER_LOST
    client = rig.scheduler_client
    await until(lambda: not client.is_ready)


async def test_without_a_scheduler_each_call_is_refused(make_rig: MakeRig) -> None:
    rig = await make_rig(None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(rig.text.Chat(chat()))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert reason_in(caught.value.trailing_metadata()) is Reason.NO_SCHEDULER


async def test_an_invalid_request_names_the_path_in_the_wrapping_message(make_rig: MakeRig) -> None:
    rig = await make_rig(one_token_at_a_time)
    request = chat(sampling_params=types_pb2.SamplingParams(max_tokens=0))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(rig.text.Chat(request))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(caught.value.details()).startswith("request.sampling_params.max_tokens is 0")
    assert rig.scheduler is not None
    assert not rig.scheduler.generations


async def test_the_smaller_of_two_limits_applies(make_rig: MakeRig) -> None:
    rig = await make_rig(one_token_at_a_time)
    assert rig.scheduler is not None
    assert rig.scheduler_client is not None
    rig.scheduler.model_info = types_pb2.ModelInfo(max_model_len=3, max_logprobs=5)
    client = rig.scheduler_client
    await until(lambda: client.model_info == types_pb2.ModelInfo(max_model_len=3, max_logprobs=5))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(rig.text.Chat(chat()))
    assert reason_in(caught.value.trailing_metadata()) is Reason.PROMPT_TOO_LONG


async def test_the_deadline_travels_on(make_rig: MakeRig) -> None:
    remaining: list[float] = []

    async def wait(generation: Generation) -> AsyncIterator[Response]:
        remaining.append(generation.context.time_remaining())
        yield admitted()
        await asyncio.sleep(60)

    rig = await make_rig(wait)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(rig.text.Chat(chat(), timeout=0.5))
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0 < remaining[0] < 0.5
    assert rig.scheduler is not None
    async with asyncio.timeout(2):
        await rig.scheduler.generations[0].ended.wait()


async def test_nothing_is_sent_before_the_request_is_admitted(make_rig: MakeRig) -> None:
    admit = asyncio.Event()

    async def script(_generation: Generation) -> AsyncIterator[Response]:
        await admit.wait()
        yield admitted()
        yield chunk(ids_of("now"))
        yield finished()

    rig = await make_rig(script)
    call = rig.text.Chat(chat())
    headers = asyncio.ensure_future(call.initial_metadata())
    await asyncio.sleep(0.2)
    assert not headers.done()
    admit.set()
    assert (await collect(call))[0] == "now"


@pytest.mark.parametrize(
    "phase", ["before admission", "in the queue", "in mid-stream", "after a stop string"]
)
async def test_a_client_that_goes_away_frees_the_scheduler(make_rig: MakeRig, phase: str) -> None:
    reached = asyncio.Event()

    async def script(_generation: Generation) -> AsyncIterator[Response]:
        if phase != "before admission":
            yield admitted()
        if phase == "in mid-stream":
            yield chunk(ids_of("partial"))
        if phase == "after a stop string":
            yield chunk(ids_of("a STOP"))
        reached.set()
        await asyncio.sleep(60)

    rig = await make_rig(script)
    call = rig.text.Chat(chat(text_params=render_pb2.TextParams(stop=["STOP"])))
    reading = asyncio.ensure_future(collect(call))
    await reached.wait()
    await asyncio.sleep(0.05)
    call.cancel()
    assert rig.scheduler is not None
    async with asyncio.timeout(2):
        await rig.scheduler.generations[0].ended.wait()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_client_that_does_not_read_frees_the_scheduler_when_it_goes(make_rig: MakeRig) -> None:
    async def flood(_generation: Generation) -> AsyncIterator[Response]:
        yield admitted()
        while True:
            yield chunk(ids_of("word ") * 2000)

    rig = await make_rig(flood)
    call = rig.text.Chat(chat())
    await call.read()
    await asyncio.sleep(0.3)
    call.cancel()
    assert rig.scheduler is not None
    async with asyncio.timeout(3):
        await rig.scheduler.generations[0].ended.wait()
