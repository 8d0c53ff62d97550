"""Who owns the cache, and what a session that follows is told: the rules of worker.proto."""

import asyncio
from typing import Any

import grpc
import pytest
from triptych.v1 import worker_pb2

from shared.errors import Reason
from tests.integration.worker.conftest import StartWorker, Worker
from tests.integration.worker.sessions import Session, sequence, step

MALFORMED_SESSION = (grpc.StatusCode.INVALID_ARGUMENT, Reason.MALFORMED_SESSION)
MALFORMED_STEP = (grpc.StatusCode.INVALID_ARGUMENT, Reason.MALFORMED_STEP)
TAKEN_OVER = (grpc.StatusCode.ABORTED, Reason.FENCED)
REFUSED = (grpc.StatusCode.FAILED_PRECONDITION, Reason.FENCED)


def chosen(result: worker_pb2.StepResult) -> int:
    return result.sequences[0].samples[0].token_id


async def started(waiting: "asyncio.Future[Any]") -> bool:
    """Whether it ends soon."""
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    return bool(done)


async def test_a_session_opens_with_the_model_and_nothing_retained(worker: Worker) -> None:
    opened = await Session(worker.stub).open()
    assert opened.session_id
    assert opened.worker_epoch
    assert not opened.cache_retained
    assert opened.last_executed_step_id == 0
    info = (await worker.stub.GetModelInfo(worker_pb2.GetModelInfoRequest())).model_info
    assert opened.model_info == info
    assert info.model == "demo_model"


async def test_the_first_message_is_open_and_every_other_a_step(worker: Worker) -> None:
    without_open, silent, empty, twice = (Session(worker.stub) for _ in range(4))
    await without_open.send(step(1))
    assert await without_open.end() == MALFORMED_SESSION
    await silent.call.done_writing()
    assert await silent.end() == MALFORMED_SESSION
    await empty.call.write(worker_pb2.ExecuteRequest())
    assert await empty.end() == MALFORMED_SESSION
    await twice.open()
    await twice.send_open()
    assert await twice.end() == MALFORMED_SESSION


async def test_a_session_that_its_scheduler_closes_ends_well(worker: Worker) -> None:
    session = Session(worker.stub)
    await session.open()
    await session.execute(step(1))
    await session.call.done_writing()
    assert await session.end() == (grpc.StatusCode.OK, None)


@pytest.mark.parametrize("generation", [7, 8])
async def test_an_equal_or_higher_generation_ends_the_older_session(worker: Worker, generation: int) -> None:
    older, newer = Session(worker.stub), Session(worker.stub)
    await older.open(generation=7)
    await newer.open(generation=generation)
    assert await older.end() == TAKEN_OVER
    assert chosen(await newer.execute(step(1)))


async def test_a_lower_generation_is_refused_also_after_the_higher_has_gone(worker: Worker) -> None:
    newer, early, late = (Session(worker.stub) for _ in range(3))
    await newer.open(generation=8)
    await early.send_open(generation=7)
    assert await early.end() == REFUSED
    await newer.call.done_writing()
    await newer.end()
    await late.send_open(generation=7)
    assert await late.end() == REFUSED


async def test_a_new_session_opens_once_the_older_one_s_pass_has_returned(worker: Worker) -> None:
    older, newer = Session(worker.stub), Session(worker.stub)
    await older.open(generation=7)
    worker.runner.gate.clear()
    await older.send(step(1))
    await asyncio.to_thread(worker.runner.is_in_pass.wait, 5)
    await newer.send_open(generation=8)
    opened = asyncio.ensure_future(newer.opened())
    assert not await started(opened)
    worker.runner.gate.set()
    # What was computed is delivered, then the session ends.
    assert (await older.result()).step_id == 1
    assert await older.end() == TAKEN_OVER
    assert (await opened).session_id


async def test_a_session_that_waits_to_open_is_fenced_by_a_later_one(worker: Worker) -> None:
    first, second, third = (Session(worker.stub) for _ in range(3))
    await first.open(generation=7)
    worker.runner.gate.clear()
    await first.send(step(1))
    await asyncio.to_thread(worker.runner.is_in_pass.wait, 5)
    await second.send_open(generation=8)
    await asyncio.sleep(0.1)
    await third.send_open(generation=9)
    await asyncio.sleep(0.1)
    worker.runner.gate.set()
    assert await second.end() == TAKEN_OVER
    assert (await third.opened()).session_id


async def test_a_resumed_session_finds_the_blocks_as_they_were(worker: Worker) -> None:
    broken, next_one = Session(worker.stub), Session(worker.stub)
    session_id = (await broken.open()).session_id
    first = chosen(await broken.execute(step(41)))
    expected = chosen(await broken.execute(step(42, sequence([first], context_len=3))))
    broken.call.cancel()
    opened = await next_one.open(resume=session_id)
    assert opened.cache_retained
    assert opened.last_executed_step_id == 42
    again = step(1, sequence([first], context_len=3))
    assert chosen(await next_one.execute(again)) == expected


async def test_a_pass_whose_caller_vanished_counts_as_executed(worker: Worker) -> None:
    broken, next_one = Session(worker.stub), Session(worker.stub)
    session_id = (await broken.open()).session_id
    await broken.execute(step(1))
    worker.runner.gate.clear()
    await broken.send(step(2))
    await asyncio.to_thread(worker.runner.is_in_pass.wait, 5)
    broken.call.cancel()
    await next_one.send_open(resume=session_id)
    opened = asyncio.ensure_future(next_one.opened())
    assert not await started(opened)
    worker.runner.gate.set()
    assert (await opened).cache_retained
    assert (await opened).last_executed_step_id == 2
    await next_one.execute(step(3))
    assert worker.runner.executed == [1, 2, 3]


async def test_a_resumed_session_that_executed_nothing_says_so(worker: Worker) -> None:
    first, second, third = (Session(worker.stub) for _ in range(3))
    session_id = (await first.open()).session_id
    await first.execute(step(7))
    session_id = (await second.open(resume=session_id)).session_id
    opened = await third.open(resume=session_id)
    assert opened.cache_retained
    # Step 7 was the first session's; a scheduler must not take it for one of the second's.
    assert opened.last_executed_step_id == 0


async def test_only_the_last_session_can_be_resumed(worker: Worker) -> None:
    first, second, third, fourth = (Session(worker.stub) for _ in range(4))
    first_id = (await first.open()).session_id
    await second.open()
    for session, resume in ((third, first_id), (fourth, "unknown")):
        opened = await session.open(resume=resume)
        assert not opened.cache_retained
        assert opened.last_executed_step_id == 0


async def test_an_epoch_is_the_worker_s_start_and_a_session_id_the_session_s(worker: Worker) -> None:
    opened = [await Session(worker.stub).open() for _ in range(3)]
    assert len({each.worker_epoch for each in opened}) == 1
    assert len({each.session_id for each in opened}) == 3


@pytest.mark.parametrize("second", [5, 4, 7, 0])
async def test_step_ids_count_up_by_one(worker: Worker, second: int) -> None:
    session = Session(worker.stub)
    await session.open()
    assert (await session.execute(step(5))).step_id == 5
    await session.send(step(second))
    assert await session.end() == MALFORMED_STEP
    assert await session.field_at_fault() == "step_id"
    assert "allowed: 6" in await session.call.details()
    assert worker.runner.executed == [5]


async def test_before_the_model_is_loaded_nothing_opens_but_health_answers(
    start_worker: StartWorker,
) -> None:
    loading = asyncio.Event()
    loop = asyncio.get_running_loop()
    runner: Any = None
    worker = await start_worker(
        load=lambda _is_stopping: asyncio.run_coroutine_threadsafe(loading.wait(), loop).result() and runner
    )
    runner = worker.runner
    assert await worker.health("") == 1
    assert await worker.health() == 2
    session = Session(worker.stub)
    assert await session.end() == (grpc.StatusCode.UNAVAILABLE, Reason.MODEL_LOADING)
    with pytest.raises(grpc.aio.AioRpcError, match="being loaded"):
        await worker.stub.GetModelInfo(worker_pb2.GetModelInfoRequest())
    loading.set()
    await worker.until_ready()
    await Session(worker.stub).open()
