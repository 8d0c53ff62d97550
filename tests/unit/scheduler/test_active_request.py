"""ActiveRequest: the core's events as a caller sees them."""

from typing import Any

import pytest
from triptych.v1 import scheduler_pb2, types_pb2, worker_pb2

from services.scheduler.active_request import ActiveRequest
from services.scheduler.core import events as core
from services.scheduler.core.request import FinishReason, Request
from services.scheduler.core.scheduler_output import SampledToken
from services.scheduler.output_stream import OutputStream
from shared.errors import Reason, ServiceError

LOGPROBS = types_pb2.PositionLogprobs(token=types_pb2.TokenLogprob(token_id=7, logprob=-1))


@pytest.fixture
def request_() -> Request:
    """Arrived at 10.0; two outputs."""
    return Request("g", "r", (1, 2, 3), max_tokens=9, seeds=(4, 5), arrival_time=10.0)


@pytest.fixture
def active(request_: Request) -> ActiveRequest:
    return ActiveRequest(request_, worker_pb2.SamplingStep(), OutputStream(10_000))


async def events(active: ActiveRequest) -> list[scheduler_pb2.GenerateResponse]:
    """All that a caller gets; the request has ended."""
    return [event async for event in active.stream]


def finish(active: ActiveRequest, output_index: int, now: float = 12.0, **fields: Any) -> None:
    sequence = active.request.sequences[output_index]
    active.publish(core.FinishedEvent(sequence, FinishReason.LENGTH, **fields), now)


def finish_all(active: ActiveRequest) -> None:
    for index in range(len(active.request.sequences)):
        finish(active, index)


async def test_admission_names_the_request_and_what_will_be_applied(active: ActiveRequest) -> None:
    active.admitted()
    finish_all(active)
    admitted = (await events(active))[0].admitted
    assert (admitted.generation_id, list(admitted.seeds)) == ("g", [4, 5])
    assert (admitted.max_tokens, admitted.prompt_tokens) == (9, 3)


async def test_scheduling_says_how_long_it_waited_and_what_was_cached(active: ActiveRequest) -> None:
    active.request.first_scheduled_time = 10.5
    active.request.num_cached_tokens = 2
    active.publish(core.ScheduledEvent(active.request), 11.0)
    finish_all(active)
    scheduled = (await events(active))[0].scheduled
    assert (scheduled.cached_tokens, scheduled.queue_seconds) == (2, 0.5)


async def test_tokens_and_their_logprobs_are_chunks_of_their_output(active: ActiveRequest) -> None:
    sequence = active.request.sequences[1]
    active.publish(core.TokenEvent(sequence, SampledToken(7, LOGPROBS)), 11.0)
    finish_all(active)
    (event, *_) = await events(active)
    assert event.output_index == 1
    assert event.chunk == scheduler_pb2.TokenChunk(token_ids=[7], logprobs=[LOGPROBS])


async def test_prompt_logprobs_keep_their_position(active: ActiveRequest) -> None:
    active.publish(core.PromptLogprobsEvent(active.request, 5, (LOGPROBS, LOGPROBS)), 11.0)
    finish_all(active)
    message = (await events(active))[0].prompt_logprobs
    assert (message.first_position, list(message.positions)) == (5, [LOGPROBS, LOGPROBS])


async def test_it_is_over_with_its_last_end_even_if_one_step_ended_all(active: ActiveRequest) -> None:
    """The core has ended both outputs before the first end is published."""
    for sequence in active.request.sequences:
        sequence.status = type(sequence.status).FINISHED
    finish(active, 0)
    assert not active.is_over
    finish(active, 1)
    assert active.is_over
    assert [event.output_index for event in await events(active)] == [0, 1]


async def test_an_end_tells_reason_counts_and_times(active: ActiveRequest) -> None:
    request = active.request
    request.first_scheduled_time, request.first_token_time = 10.25, 10.75
    request.worker_seconds, request.num_cached_tokens = 1.5, 2
    request.sequences[0].output_token_ids = [1, 2, 3]
    request.sequences[1].output_token_ids = [4]
    request.sequences[1].num_preemptions, request.sequences[1].num_migrations = 3, 1
    finish_all(active)
    finished = (await events(active))[1].finished
    assert finished.finish_reason == types_pb2.FINISH_REASON_LENGTH
    assert not finished.HasField("stop_token_id")
    assert finished.usage == types_pb2.Usage(prompt_tokens=3, cached_tokens=2, completion_tokens=4)
    assert finished.timings == types_pb2.RequestTimings(
        queue_seconds=0.25,
        ttft_seconds=0.75,
        total_seconds=2.0,
        worker_seconds=1.5,
        num_preemptions=3,
        num_moves=1,
    )


async def test_what_has_not_happened_took_no_time(active: ActiveRequest) -> None:
    finish_all(active)
    timings = (await events(active))[0].finished.timings
    assert (timings.queue_seconds, timings.ttft_seconds, timings.total_seconds) == (0, 0, 2.0)


async def test_the_token_that_ended_an_output_is_told_also_if_it_is_zero(active: ActiveRequest) -> None:
    finish(active, 0, stop_token=SampledToken(0, LOGPROBS))
    finish(active, 1)
    first, second = [event.finished for event in await events(active)]
    assert first.HasField("stop_token_id")
    assert (first.stop_token_id, first.stop_token_logprobs) == (0, LOGPROBS)
    assert not second.HasField("stop_token_id")


async def test_a_failure_ends_all_with_its_reason(active: ActiveRequest) -> None:
    active.publish(core.FailedEvent(active.request, "SEQUENCE_FAILED", "a NaN"), 11.0)
    assert active.is_over
    with pytest.raises(ServiceError, match="a NaN") as caught:
        await events(active)
    assert caught.value.reason is Reason.SEQUENCE_FAILED


async def test_a_reader_too_slow_is_reported_once_and_it_is_over(request_: Request) -> None:
    active = ActiveRequest(request_, worker_pb2.SamplingStep(), OutputStream(100))
    sequence = request_.sequences[0]
    token = core.TokenEvent(sequence, SampledToken(7, LOGPROBS))
    told = [active.publish(token, 11.0) for _ in range(50)]
    assert told.count(False) == 1
    assert active.is_over
