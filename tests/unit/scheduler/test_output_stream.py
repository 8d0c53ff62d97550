"""OutputStream: what a caller reads, however slowly, and what that costs the scheduler."""

import asyncio
from collections.abc import Sequence

import pytest
from triptych.v1 import scheduler_pb2, types_pb2

from services.scheduler.output_stream import OutputStream
from shared.errors import Reason, ServiceError

Response = scheduler_pb2.GenerateResponse


def chunk(*token_ids: int, output_index: int = 0, with_logprobs: bool = False) -> Response:
    logprobs = [types_pb2.PositionLogprobs(token=types_pb2.TokenLogprob(token_id=each)) for each in token_ids]
    return Response(
        output_index=output_index,
        chunk=scheduler_pb2.TokenChunk(token_ids=token_ids, logprobs=logprobs if with_logprobs else ()),
    )


def finished(output_index: int = 0) -> Response:
    return Response(output_index=output_index, finished=scheduler_pb2.OutputFinished())


def large(num_positions: int) -> Response:
    positions = [types_pb2.PositionLogprobs()] * num_positions
    return Response(prompt_logprobs=scheduler_pb2.PromptLogprobs(positions=positions))


async def read(stream: OutputStream) -> list[Response]:
    """What a caller gets who comes only now; the stream has ended."""
    return [event async for event in stream]


def tokens(events: Sequence[Response]) -> list[tuple[int, list[int]]]:
    return [(event.output_index, list(event.chunk.token_ids)) for event in events if event.HasField("chunk")]


async def test_a_reader_that_keeps_up_gets_each_event_as_it_was_put() -> None:
    stream = OutputStream(1000)
    events = aiter(stream)
    for token_id in range(5):
        assert stream.put(chunk(token_id))
        assert await anext(events) == chunk(token_id)


async def test_a_reader_waits_for_what_is_put_later() -> None:
    stream = OutputStream(1000)
    reading = asyncio.create_task(read(stream))
    await asyncio.sleep(0)
    stream.put(chunk(1))
    await asyncio.sleep(0)
    stream.put(chunk(2))
    stream.finish()
    assert tokens(await reading) == [(0, [1]), (0, [2])]


async def test_unread_tokens_of_one_output_become_one_chunk_with_their_logprobs() -> None:
    stream = OutputStream(1000)
    for token_id in range(5):
        stream.put(chunk(token_id, with_logprobs=True))
    stream.finish()
    assert await read(stream) == [chunk(0, 1, 2, 3, 4, with_logprobs=True)]


async def test_outputs_that_take_turns_are_merged_each_with_itself() -> None:
    stream = OutputStream(1000)
    for token_id in range(6):
        stream.put(chunk(token_id, output_index=token_id % 2))
    stream.finish()
    assert tokens(await read(stream)) == [(0, [0, 2, 4]), (1, [1, 3, 5])]


async def test_an_output_keeps_its_order_around_what_is_not_a_chunk() -> None:
    stream = OutputStream(1000)
    for event in (large(1), chunk(1), chunk(2, output_index=1), finished(1), chunk(3), finished()):
        stream.put(event)
    stream.finish()
    assert await read(stream) == [large(1), chunk(1, 3), chunk(2, output_index=1), finished(1), finished()]


async def test_a_chunk_that_was_read_takes_no_more_tokens() -> None:
    stream = OutputStream(1000)
    stream.put(chunk(1))
    taken = await anext(aiter(stream))
    stream.put(chunk(2))
    stream.finish()
    assert taken == chunk(1)
    assert await read(stream) == [chunk(2)]


async def test_past_the_bound_the_stream_ends_with_slow_reader_and_holds_nothing() -> None:
    stream = OutputStream(1000)
    num_put = 0
    while stream.put(chunk(num_put)):
        num_put += 1
        assert num_put < 1000
    assert num_put > 100
    with pytest.raises(ServiceError) as caught:
        await read(stream)
    assert caught.value.reason is Reason.SLOW_READER
    assert "1000 bytes" in caught.value.message
    assert stream.put(chunk(1))  # the request has ended: nothing is slow any more
    assert not stream._unread
    assert not stream._chunks


async def test_a_reader_that_catches_up_may_leave_as_much_again() -> None:
    stream = OutputStream(1000)
    events = aiter(stream)
    for token_id in range(1000):
        assert stream.put(chunk(token_id))
        if token_id % 50 == 0:
            await anext(events)


async def test_one_large_event_and_what_its_step_adds_are_no_sign_of_slowness() -> None:
    stream = OutputStream(1000)
    assert stream.put(large(5000))
    assert stream.put(chunk(1))
    assert stream.put(finished())
    stream.finish()
    assert len(await read(stream)) == 3


async def test_large_events_left_unread_are() -> None:
    stream = OutputStream(1000)
    assert stream.put(large(5000))
    assert stream.put(large(5000))
    assert not stream.put(large(5000))


async def test_what_was_put_before_a_failure_is_read_before_its_error() -> None:
    stream = OutputStream(1000)
    stream.put(chunk(1))
    stream.fail(ServiceError(Reason.WORKER_LOST, "gone"))
    events = aiter(stream)
    assert await anext(events) == chunk(1)
    with pytest.raises(ServiceError, match="gone"):
        await anext(events)


async def test_after_the_end_nothing_counts() -> None:
    stream = OutputStream(1000)
    stream.put(finished())
    stream.finish()
    stream.fail(ServiceError(Reason.BUG, "late"))
    assert stream.put(chunk(1))
    assert await read(stream) == [finished()]
