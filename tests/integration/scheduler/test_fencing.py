"""Two schedulers never drive one worker: the later one wins, and the earlier one knows."""

import asyncio

from grpc import StatusCode

from tests.integration.scheduler.client import prompt_of, read_until, refusal_of, request, until
from tests.integration.scheduler.conftest import MakeRig
from tests.support.fake_worker import FakeWorker
from tests.support.fake_worker_model import undisturbed_output
from tests.support.processes import free_port


async def test_the_later_of_two_schedulers_has_the_worker_and_the_earlier_gives_up(make_rig: MakeRig) -> None:
    async with FakeWorker(step_seconds=0.01) as worker:
        earlier = await make_rig(worker)
        running = earlier.stub.Generate(request(prompt_of(20), max_tokens=400))
        await read_until(running, "chunk")
        later = await make_rig(worker)
        refusal = await refusal_of(running)
        assert (refusal.code, refusal.reason) == (StatusCode.UNAVAILABLE, "WORKER_LOST")
        answer = await later.generate(request(prompt_of(20), max_tokens=10))
        assert answer.tokens() == undisturbed_output(prompt_of(20), 10)
        await until(lambda: earlier.service.engine.is_fenced)
        assert not await earlier.is_ready()
        refusal = await refusal_of(earlier.stub.Generate(request(prompt_of(5))))
        assert (refusal.code, refusal.reason) == (StatusCode.UNAVAILABLE, "NO_WORKER")
        assert "later scheduler" in refusal.message
        assert await later.is_ready()


async def test_a_scheduler_refused_as_fenced_does_not_try_again(make_rig: MakeRig) -> None:
    worker = FakeWorker(port=free_port())
    worker.refuses_as_fenced = True
    rig = await make_rig(worker, num_ready=0)
    async with worker:
        await until(lambda: len(worker.opens) == 1)
        worker.refuses_as_fenced = False
        await asyncio.sleep(1.2)
        assert len(worker.opens) == 1
        assert not await rig.is_ready()


async def test_fenced_at_one_worker_it_leaves_all_and_waits_for_none(make_rig: MakeRig) -> None:
    absent = FakeWorker(port=free_port())
    contested, other = FakeWorker(step_seconds=0.01), FakeWorker(step_seconds=0.01)
    rig = await make_rig(contested, other, absent, num_ready=2)
    calls = [rig.stub.Generate(request(prompt_of(20, first), max_tokens=400)) for first in range(4)]
    for call in calls:
        await read_until(call, "chunk")
    later = await make_rig(contested)
    for call in calls:
        assert (await refusal_of(call)).code is StatusCode.UNAVAILABLE
    assert [each.ready for each in rig.status.workers] == [False, False, False]
    async with absent:
        await asyncio.sleep(1.2)
        assert absent.opens == []
    assert await later.is_ready()


async def test_of_two_generations_the_larger_is_the_later_start(make_rig: MakeRig) -> None:
    async with FakeWorker() as worker:
        await make_rig(worker)
        await make_rig(worker)
        first, second = worker.opens
        assert first.generation < second.generation
