"""Text generation without any transport: a scheduler in this very process plays the events."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from time import monotonic
from typing import Any, cast

import pytest
from triptych.v1 import render_pb2, scheduler_pb2, types_pb2

from services.render.compute_pool import ComputePool
from services.render.config import RenderConfig
from services.render.frontend.scheduler_client import SchedulerClient
from services.render.frontend.text_generator import TextGenerator
from services.render.loading import load_renderer
from services.render.output.output_text import OutputTextFactory
from shared.errors import Reason, ServiceError
from tests.support.fake_scheduler import Response, admitted, chunk, finished
from tests.support.render_models import demo_tokenizer


class InProcessScheduler:
    """Stands in for SchedulerClient: each generation plays `play`."""

    def __init__(self, play: Callable[[], AsyncIterator[Response]]) -> None:
        self._play = play
        self.requests: list[scheduler_pb2.GenerateRequest] = []
        self.deadlines: list[float | None] = []
        self.aborts: list[tuple[str, int]] = []
        self.num_open = 0

    async def generate(
        self, request: scheduler_pb2.GenerateRequest, deadline: float | None
    ) -> AsyncGenerator[Response, None]:
        self.requests.append(request)
        self.deadlines.append(deadline)
        self.num_open += 1
        try:
            async for event in self._play():
                yield event
        finally:
            self.num_open -= 1

    async def abort(self, generation_id: str, output_index: int) -> None:
        self.aborts.append((generation_id, output_index))


def generator_over(scheduler: InProcessScheduler | None) -> TextGenerator:
    loaded = load_renderer(RenderConfig())
    return TextGenerator(
        loaded.renderer,
        OutputTextFactory(loaded.tokenizer),
        ComputePool(),
        cast(SchedulerClient | None, scheduler),
    )


def ids_of(text: str) -> list[int]:
    return demo_tokenizer().encode(text, add_special_tokens=False, field="text")


def chat(**fields: Any) -> render_pb2.RenderChatRequest:
    return render_pb2.RenderChatRequest(
        messages=[render_pb2.ChatMessage(role="user", content="Hello!")], **fields
    )


async def hello() -> AsyncIterator[Response]:
    yield admitted()
    for token_id in ids_of("Hello to you."):
        yield chunk([token_id])
    yield finished(types_pb2.FINISH_REASON_STOP, stop_token_id=1)


REQUESTS = (chat(request_id="mine"), render_pb2.RenderCompletionRequest(text="Hello", request_id="mine"))


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
async def test_a_chat_and_a_plain_prompt_become_text_events(request_: Any) -> None:
    scheduler = InProcessScheduler(hello)
    events = [event async for event in generator_over(scheduler).generate(request_)]
    assert "".join(event.delta.text for event in events) == "Hello to you."
    assert events[-1].finished.stop_token_id == 1
    assert 0 < events[-1].finished.render_seconds < events[-1].finished.total_seconds
    assert scheduler.requests[0].request_id == "mine"
    assert scheduler.num_open == 0


async def test_the_deadline_reaches_the_scheduler() -> None:
    scheduler = InProcessScheduler(hello)
    deadline = monotonic() + 60
    assert [event async for event in generator_over(scheduler).generate(chat(), deadline)]
    assert scheduler.deadlines == [deadline]


async def test_a_stop_string_aborts_its_output() -> None:
    async def play() -> AsyncIterator[Response]:
        yield admitted()
        yield chunk(ids_of("one STOP two"))
        yield finished(types_pb2.FINISH_REASON_ABORT)

    scheduler = InProcessScheduler(play)
    request = chat(text_params=render_pb2.TextParams(stop=["STOP"]))
    events = [event async for event in generator_over(scheduler).generate(request)]
    assert scheduler.aborts == [("generation-1", 0)]
    assert "".join(event.delta.text for event in events) == "one "
    assert events[-1].finished.stop_string == "STOP"


async def test_a_generator_that_is_closed_ends_the_generation() -> None:
    scheduler = InProcessScheduler(hello)
    async with aclosing(generator_over(scheduler).generate(chat())) as events:
        await anext(events)
        assert scheduler.num_open == 1
    assert scheduler.num_open == 0


async def test_errors_are_service_errors_with_field_paths_below_the_prefix() -> None:
    scheduler = InProcessScheduler(hello)
    request = chat(sampling_params=types_pb2.SamplingParams(max_tokens=0))
    with pytest.raises(ServiceError) as caught:
        await anext(generator_over(scheduler).generate(request, prefix="body."))
    assert caught.value.field == "body.sampling_params.max_tokens"
    assert not scheduler.requests


async def test_an_end_before_every_output_has_ended_is_an_error() -> None:
    async def play() -> AsyncIterator[Response]:
        yield admitted(seeds=(1, 2))
        yield finished(output_index=0)

    with pytest.raises(ServiceError) as caught:
        _ = [event async for event in generator_over(InProcessScheduler(play)).generate(chat())]
    assert caught.value.reason is Reason.SCHEDULER_LOST


async def test_without_a_scheduler_a_request_is_refused() -> None:
    with pytest.raises(ServiceError) as caught:
        await anext(generator_over(None).generate(chat()))
    assert caught.value.reason is Reason.NO_SCHEDULER
