"""A caller that goes away, in any phase: everything that its request held is free within a step."""

import asyncio
import random

import pytest

from tests.integration.scheduler.client import (
    collect,
    prompt_of,
    read_until,
    request,
    until,
)
from tests.integration.scheduler.conftest import MakeRig
from tests.support.fake_worker import FakeWorker
from tests.support.fake_worker_model import undisturbed_output


async def test_cancelled_while_waiting_it_never_runs(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(), max_num_seqs=1)
    worker = rig.workers[0]
    worker.hold()
    running = rig.stub.Generate(request(prompt_of(5), max_tokens=1))
    await worker.step_in_flight()
    waiting = rig.stub.Generate(request(prompt_of(9), max_tokens=1, request_id="waiting"))
    await read_until(waiting, "admitted")
    waiting.cancel()
    await until(lambda: rig.status.num_waiting == 0)
    worker.release()
    await collect(running)
    assert all(each.request_id != "waiting" for step in worker.steps for each in step.sequences)


@pytest.mark.parametrize("max_tokens", [1, 50])
async def test_cancelled_in_mid_prefill_its_blocks_are_free_after_the_step(
    make_rig: MakeRig, max_tokens: int
) -> None:
    rig = await make_rig(FakeWorker(), max_num_batched_tokens=16)
    worker = rig.workers[0]
    worker.hold()
    call = rig.stub.Generate(request(prompt_of(100), max_tokens=max_tokens))
    await worker.step_in_flight()
    call.cancel()
    await until(lambda: rig.status.num_running == 0)
    assert rig.status.workers[0].num_live_blocks > 0  # the step still writes them
    worker.release()
    await until(lambda: rig.is_idle)
    assert len(worker.steps) == 1


async def test_cancelled_while_decoding_it_gets_no_further_step(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.02))
    worker = rig.workers[0]
    call = rig.stub.Generate(request(prompt_of(40), max_tokens=400))
    await read_until(call, "chunk")
    call.cancel()
    await until(lambda: rig.is_idle)
    num_steps = len(worker.steps)
    await asyncio.sleep(0.1)
    assert len(worker.steps) == num_steps <= 5


async def test_cancelled_with_many_outputs_all_are_gone(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.01), max_num_seqs=4)
    call = rig.stub.Generate(request(prompt_of(40), max_tokens=300, n=8))
    for _ in range(20):
        await call.read()
    call.cancel()
    await until(lambda: rig.is_idle)


async def test_cancelled_after_the_end_nothing_happens(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker())
    call = rig.stub.Generate(request(prompt_of(40), max_tokens=2))
    await read_until(call, "finished")
    call.cancel()
    assert rig.is_idle
    assert (await rig.generate(request(prompt_of(40), max_tokens=2))).finished().usage.cached_tokens == 32


async def test_after_2000_requests_cancelled_at_random_no_block_is_lost(make_rig: MakeRig) -> None:
    """S7, on a pool so small that requests are preempted meanwhile."""
    rig = await make_rig(FakeWorker(num_blocks=41, max_model_len=128), max_num_seqs=16, max_waiting=2000)
    rng = random.Random(7)
    total = 40
    slots = asyncio.Semaphore(64)

    async def one(index: int) -> None:
        async with slots:
            prompt = prompt_of(rng.randrange(1, 80), first=rng.randrange(5))
            n = rng.choice([1, 1, 1, 3])
            call = rig.stub.Generate(request(prompt, max_tokens=rng.randrange(1, 30), n=n))
            for _ in range(rng.choice([0, 0, 1, 2, 3, 6, 12])):
                if not await call.read():
                    break
            call.cancel()
            await asyncio.sleep(0)
            if index % 50 == 0:
                status = rig.status.workers[0]
                counts = (status.num_live_blocks, status.num_cached_blocks, status.num_free_blocks)
                assert sum(counts) == total, counts

    await asyncio.gather(*(one(index) for index in range(2000)))
    await until(lambda: rig.is_idle)
    status = rig.status.workers[0]
    assert (status.num_live_blocks, status.num_cached_blocks + status.num_free_blocks) == (0, total)
    prompt = prompt_of(70, first=2)
    assert (await rig.generate(request(prompt, max_tokens=20))).tokens() == undisturbed_output(prompt, 20)
