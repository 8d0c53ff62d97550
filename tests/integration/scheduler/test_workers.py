"""Workers come late, die, come back, drain, differ; requests move or fail, never end as if all were well."""

import asyncio
from time import monotonic
from typing import Any

import grpc
import pytest
import structlog
from grpc import StatusCode
from triptych.v1 import scheduler_pb2

from services.scheduler.worker_client import WorkerClient
from shared.errors import Reason, ServiceError
from shared.wire import Address
from tests.integration.scheduler.client import (
    Answer,
    collect,
    prompt_of,
    read_until,
    refusal_of,
    request,
    until,
)
from tests.integration.scheduler.conftest import MakeRig, Rig
from tests.support.fake_worker import FakeWorker
from tests.support.fake_worker_model import undisturbed_output
from tests.support.processes import free_port


async def start_streams(rig: Rig, count: int, max_tokens: int) -> list[Any]:
    """Calls that all have had their first chunk; prompts differ by their first token."""
    calls = [
        rig.stub.Generate(request(prompt_of(20, first), max_tokens=max_tokens)) for first in range(count)
    ]
    for call in calls:
        await read_until(call, "admitted")
    return calls


# Coming and going.


async def test_a_worker_that_comes_late_is_found_and_then_the_scheduler_is_ready(make_rig: MakeRig) -> None:
    worker = FakeWorker(port=free_port())
    rig = await make_rig(worker, num_ready=0)
    assert not await rig.is_ready()
    assert [(each.address, each.ready) for each in rig.status.workers] == [(str(worker.address), False)]
    async with worker:
        await rig.until_ready()
        assert (await rig.generate(request(prompt_of(5), max_tokens=2))).tokens()


async def test_a_worker_that_dies_alone_fails_its_requests_and_comes_back(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.02), max_num_seqs=2)
    (worker,) = rig.workers
    calls = await start_streams(rig, 4, max_tokens=200)  # two run, two wait
    start = monotonic()
    await worker.stop()
    for call in calls:
        refusal = await refusal_of(call)
        assert (refusal.code, refusal.reason) == (StatusCode.UNAVAILABLE, "WORKER_LOST")
    assert monotonic() - start < 5
    assert rig.is_idle
    assert not await rig.is_ready()
    await worker.start()
    await rig.until_ready()
    assert (await rig.generate(request(prompt_of(5), max_tokens=2))).tokens()


async def test_a_session_that_ends_well_or_is_cancelled_is_as_lost_as_any(make_rig: MakeRig) -> None:
    """A status of the worker's must never look like a cancellation of ours, which would end the loop."""
    rig = await make_rig(FakeWorker())
    (worker,) = rig.workers
    for code in (StatusCode.CANCELLED, StatusCode.ABORTED, StatusCode.INTERNAL):
        worker.step_error = ServiceError(Reason.BUG, "as it happens", code=code)
        refusal = await refusal_of(rig.stub.Generate(request(prompt_of(5), max_tokens=2)))
        assert (refusal.code, refusal.reason) == (StatusCode.UNAVAILABLE, "WORKER_LOST")
        worker.step_error = None
        await rig.until_ready()
        assert (await rig.generate(request(prompt_of(5), max_tokens=2))).tokens()


async def test_a_worker_that_restarts_is_believed_to_be_empty(make_rig: MakeRig) -> None:
    """S11."""
    rig = await make_rig(FakeWorker())
    prompt = prompt_of(40)
    first = await rig.generate(request(prompt, max_tokens=10))
    await rig.workers[0].restart()
    await until(lambda: not rig.status.workers[0].ready)  # the loss of an idle worker is noticed
    await rig.until_ready()
    second = await rig.generate(request(prompt, max_tokens=10))
    assert first.tokens() == second.tokens()
    assert second.finished().usage.cached_tokens == 0


async def test_requests_move_to_another_worker_and_go_on_with_the_same_tokens(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.02), FakeWorker(step_seconds=0.02))
    calls = await start_streams(rig, 6, max_tokens=40)
    await until(lambda: rig.status.num_running == 6)
    num_there = rig.status.workers[0].num_running
    await rig.workers[0].stop()
    answers = [await collect(call) for call in calls]
    for first, answer in enumerate(answers):
        assert answer.tokens() == undisturbed_output(prompt_of(20, first), 40)
        assert answer.finished().usage.completion_tokens == 40
        assert answer.finished().usage.cached_tokens == 0
        assert answer.kinds.count("scheduled") <= 1
    moves = [answer.finished().timings.num_moves for answer in answers]
    assert sorted(moves) == [0] * (6 - num_there) + [1] * num_there
    assert 0 < num_there < 6


async def test_several_outputs_and_seeds_survive_a_move(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.02), FakeWorker(step_seconds=0.02))
    call = rig.stub.Generate(request(prompt_of(40), max_tokens=30, n=3, temperature=1, logprobs=2))
    admitted = await call.read()
    await read_until(call, "scheduled")
    first = await call.read()
    busy = next(worker for worker in rig.workers if worker.steps)
    await busy.stop()
    answer = Answer([admitted, first, *(await collect(call)).events])
    for index, seed in enumerate(admitted.admitted.seeds):
        assert answer.tokens(index) == undisturbed_output(prompt_of(40), 30, seed)
    logprobs = [each for chunk in answer.of_kind("chunk") for each in chunk.logprobs]
    assert len(logprobs) == 90


async def test_what_only_the_lost_worker_could_hold_fails_and_the_rest_moves(make_rig: MakeRig) -> None:
    large, small = FakeWorker(step_seconds=0.02), FakeWorker(port=free_port(), num_blocks=5)
    rig = await make_rig(large, small, num_ready=1)
    long = rig.stub.Generate(request(prompt_of(100), max_tokens=100))
    short = rig.stub.Generate(request(prompt_of(20), max_tokens=30))
    await read_until(long, "chunk")
    await read_until(short, "scheduled")
    async with small:
        await until(lambda: rig.status.workers[1].ready)
        await large.stop()
        assert (await refusal_of(long)).reason == "WORKER_LOST"
        assert (await collect(short)).finished().timings.num_moves == 1


async def test_the_search_for_a_worker_can_be_cancelled_at_any_moment() -> None:
    """Else a scheduler that waits for its worker would not end when asked."""
    address = Address("127.0.0.1", free_port())
    async with grpc.aio.insecure_channel(str(address)) as channel:
        for delay in range(60):
            client = WorkerClient(address, channel, "scheduler", generation=1)
            search = asyncio.create_task(client.open_session(accept=lambda info: None))
            await asyncio.sleep(delay * 0.0001)
            search.cancel()
            await asyncio.wait([search], timeout=1)
            assert search.cancelled()


# More than one.


async def test_two_workers_share_the_load(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.01), FakeWorker(step_seconds=0.01))
    calls = await start_streams(rig, 16, max_tokens=20)
    await until(lambda: rig.status.num_running == 16)
    assert {each.num_running for each in rig.status.workers} <= {6, 7, 8, 9, 10}
    for first, call in enumerate(calls):
        assert (await collect(call)).finished().usage.completion_tokens == 20, first


async def test_the_pools_sizes_are_sums_and_its_limits_the_smallest(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(num_blocks=11), FakeWorker(num_blocks=9, max_logprobs=5))
    message = scheduler_pb2.SchedulerServiceGetModelInfoRequest()
    info = (await rig.stub.GetModelInfo(message)).model_info
    assert (info.num_blocks, info.max_model_len, info.max_logprobs) == (20, 128, 5)


@pytest.mark.parametrize(
    "other",
    [
        {"model_fingerprint": "model-2"},
        {"tokenizer_fingerprint": "tokenizer-2"},
        {"block_size": 8},
        {"num_blocks": 1},
        {"num_blocks": 0, "block_size": 0},
        {"max_model_len": 0},
    ],
    ids=str,
)
async def test_a_worker_of_another_model_or_without_a_cache_is_not_used(
    make_rig: MakeRig, other: dict[str, Any]
) -> None:
    second = FakeWorker(port=free_port(), **other)
    rig = await make_rig(FakeWorker(), second, num_ready=1)
    async with second:
        await until(lambda: len(second.opens) >= 2)
        calls = await start_streams(rig, 4, max_tokens=3)
        for call in calls:
            await collect(call)
        assert [each.ready for each in rig.status.workers] == [True, False]
        assert second.steps == []
        assert len(second.opens) <= 4  # it is asked again now and then, not all the time


async def test_a_draining_worker_ends_what_it_runs_and_gets_nothing_new(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.02))
    (worker,) = rig.workers
    running = rig.stub.Generate(request(prompt_of(20), max_tokens=20))
    await read_until(running, "chunk")
    await worker.set_serving(False)
    await until(lambda: not rig.status.workers[0].ready)
    assert not await rig.is_ready()
    assert (await refusal_of(rig.stub.Generate(request(prompt_of(5))))).reason == "NO_WORKER"
    assert (await collect(running)).finished().usage.completion_tokens == 20
    await worker.set_serving(True)
    await rig.until_ready()
    assert (await rig.generate(request(prompt_of(5), max_tokens=1))).tokens()


async def test_while_one_worker_drains_the_other_takes_what_is_new(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(), FakeWorker())
    await rig.workers[0].set_serving(False)
    await until(lambda: not rig.status.workers[0].ready)
    for call in await start_streams(rig, 6, max_tokens=3):
        await collect(call)
    assert rig.workers[0].steps == []
    assert await rig.is_ready()


async def test_workers_that_compute_in_different_types_serve_with_a_warning(make_rig: MakeRig) -> None:
    with structlog.testing.capture_logs() as lines:
        await make_rig(FakeWorker(), FakeWorker(weight_dtype="bfloat16"))
    (warning,) = [line for line in lines if line["log_level"] == "warning"]
    assert warning["event"] == "weight_dtypes_differ"
    assert warning["weight_dtypes"] == ["bfloat16", "float32"]
