"""A malformed step ends the stream and writes nothing; a failing one leaves the worker usable."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from triptych.v1 import worker_pb2

from shared.errors import Reason
from tests.integration.worker.conftest import Worker
from tests.integration.worker.sessions import Session, sequence, step


def changed(change: Callable[[worker_pb2.Step], object]) -> worker_pb2.Step:
    message = step(1)
    change(message)
    return message


MALFORMED = {
    "no sequence": (lambda s: s.ClearField("sequences"), "sequences"),
    "no token": (lambda s: s.sequences[0].ClearField("token_ids"), "sequences[0].token_ids"),
    "the null block": (lambda s: s.sequences[0].block_ids.__setitem__(0, 0), "sequences[0].block_ids[0]"),
    "a block out of range": (
        lambda s: s.sequences[0].block_ids.__setitem__(0, 64),
        "sequences[0].block_ids[0]",
    ),
    "a block too many": (lambda s: s.sequences[0].block_ids.append(2), "sequences[0].block_ids"),
    "a block too few": (lambda s: s.sequences[0].ClearField("block_ids"), "sequences[0].block_ids"),
    "a token out of range": (
        lambda s: s.sequences[0].token_ids.__setitem__(1, 2**32 - 1),
        "sequences[0].token_ids[1]",
    ),
    "two sequences with one key": (
        lambda s: s.sequences.append(sequence(block_ids=(2,))),
        "sequences[1].sequence_key",
    ),
    "a copy onto the null block": (
        lambda s: s.block_copies.add(source_block_id=1, target_block_id=0),
        "block_copies[0].target_block_id",
    ),
    "a sample of no token": (
        lambda s: setattr(s.sequences[0].samplings[0], "query_index", 3),
        "sequences[0].samplings[0].query_index",
    ),
}


@pytest.mark.parametrize("fault", MALFORMED)
async def test_a_malformed_step_ends_the_stream_names_the_field_and_writes_nothing(
    worker: Worker, fault: str
) -> None:
    change, field = MALFORMED[fault]
    session, after = Session(worker.stub), Session(worker.stub)
    session_id = (await session.open()).session_id
    blocks = worker.runner.runner._cache._blocks
    before = blocks.clone()
    await session.send(changed(change))
    assert await session.end() == (grpc.StatusCode.INVALID_ARGUMENT, Reason.MALFORMED_STEP)
    assert await session.field_at_fault() == field
    assert blocks.equal(before)
    assert worker.runner.executed == []
    assert (await after.open(resume=session_id)).last_executed_step_id == 0
    await after.execute(step(1))


async def test_an_unexpected_failure_is_internal_and_the_next_session_works(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_step: worker_pb2.Step) -> worker_pb2.StepResult:
        raise RuntimeError("secret")

    session, after = Session(worker.stub), Session(worker.stub)
    await session.open()
    with monkeypatch.context() as patch:
        patch.setattr(worker.runner, "run", fail)
        await session.send(step(1))
        assert await session.end() == (grpc.StatusCode.INTERNAL, Reason.BUG)
    assert "secret" not in await session.call.details()
    await after.open()
    assert (await after.execute(step(1))).step_id == 1


async def test_a_result_says_where_the_time_went(worker: Worker) -> None:
    session = Session(worker.stub)
    await session.open()
    timings = (await session.execute(step(1))).timings
    for stage in ("queue", "prepare", "forward", "sample"):
        assert 0 < getattr(timings, f"{stage}_seconds") < 5


async def test_bytes_that_are_no_message_end_the_session(worker: Worker) -> None:
    async def garbage() -> object:
        yield worker_pb2.ExecuteRequest(open=worker_pb2.OpenSession(generation=1)).SerializeToString()
        yield b"\xff\xff\xff"

    async with grpc.aio.insecure_channel(str(worker.address)) as channel:
        method: Any = channel.stream_stream("/triptych.v1.WorkerService/Execute")
        call = method(garbage())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    after = Session(worker.stub)
    await after.open()
    await after.execute(step(1))
