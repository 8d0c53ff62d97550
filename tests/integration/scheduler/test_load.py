"""Many requests at once, on pools large and small: all end, all with the tokens they would have alone."""

import asyncio
import random

import pytest

from tests.integration.scheduler.client import (
    Answer,
    collect,
    prompt_of,
    read_until,
    request,
    until,
)
from tests.integration.scheduler.conftest import MakeRig
from tests.support.fake_worker import FakeWorker
from tests.support.fake_worker_model import undisturbed_output


@pytest.mark.parametrize("max_num_seqs", [8, 256])
async def test_256_streams_at_once_all_end_with_the_tokens_they_would_have_alone(
    make_rig: MakeRig, max_num_seqs: int
) -> None:
    worker = FakeWorker(num_blocks=2049)
    rig = await make_rig(worker, max_num_seqs=max_num_seqs)
    rng = random.Random(1)
    asked = [(prompt_of(rng.randrange(1, 90), rng.randrange(9)), rng.randrange(1, 30)) for _ in range(256)]
    answers = await asyncio.gather(
        *(rig.generate(request(prompt, max_tokens=max_tokens)) for prompt, max_tokens in asked)
    )
    for (prompt, max_tokens), answer in zip(asked, answers, strict=True):
        assert answer.tokens() == undisturbed_output(prompt, max_tokens)
        assert answer.finished().usage.completion_tokens == max_tokens
    assert max(len(step.sequences) for step in worker.steps) <= max_num_seqs


async def test_on_a_pool_too_small_for_all_requests_are_preempted_and_nothing_shows(
    make_rig: MakeRig,
) -> None:
    """S2, S9, also for log-probabilities."""
    rig = await make_rig(FakeWorker(num_blocks=13, max_model_len=160), FakeWorker(num_blocks=13))

    async def one(first: int) -> Answer:
        message = request(prompt_of(20, first), max_tokens=90, temperature=1, seed=first, logprobs=2, n=2)
        return await rig.generate(message)

    alone = [await one(first) for first in range(3)]
    together = await asyncio.gather(*(one(first % 3) for first in range(12)))
    for first, answer in enumerate(together):
        for index in (0, 1):
            assert answer.tokens(index) == alone[first % 3].tokens(index)
            assert logprobs_of_output(answer, index) == logprobs_of_output(alone[first % 3], index)
    assert sum(answer.finished(i).timings.num_preemptions for answer in together for i in (0, 1)) > 0


def logprobs_of_output(answer: Answer, output_index: int) -> list[object]:
    own = [event for event in answer.events if event.output_index == output_index]
    return [each for event in own for each in event.chunk.logprobs]


async def test_a_higher_priority_starts_first_and_stops_nothing_that_runs(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(), max_num_seqs=1)
    (worker,) = rig.workers
    worker.hold()
    running = rig.stub.Generate(request(prompt_of(5), max_tokens=3, request_id="running"))
    await worker.step_in_flight()
    calls = []
    for name, priority in (("low", -1), ("first", 0), ("second", 0), ("high", 5)):
        message = request(prompt_of(6), max_tokens=2, request_id=name, priority=priority)
        calls.append(rig.stub.Generate(message))
        await read_until(calls[-1], "admitted")
    worker.release()
    for call in (running, *calls):
        await collect(call)
    order = dict.fromkeys(each.request_id for step in worker.steps for each in step.sequences)
    assert list(order) == ["running", "high", "first", "second", "low"]


async def test_waiting_raises_a_priority(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(), max_num_seqs=1, priority_aging=0.02)
    (worker,) = rig.workers
    worker.hold()
    calls = [rig.stub.Generate(request(prompt_of(5), max_tokens=1))]
    await worker.step_in_flight()
    for name, priority in (("old", 0), ("new", 3)):
        calls.append(
            rig.stub.Generate(request(prompt_of(6), request_id=name, priority=priority, max_tokens=1))
        )
        await read_until(calls[-1], "admitted")
        await asyncio.sleep(0.1)
    worker.release()
    for call in calls:
        await collect(call)
    assert [step.sequences[0].request_id for step in worker.steps[1:]] == ["old", "new"]


async def test_decodes_go_on_in_every_step_of_a_long_prefill(make_rig: MakeRig) -> None:
    """S10."""
    rig = await make_rig(FakeWorker(step_seconds=0.005), max_num_batched_tokens=16)
    (worker,) = rig.workers
    decode = rig.stub.Generate(request(prompt_of(5), max_tokens=60, request_id="decode"))
    await read_until(decode, "chunk")
    prefill = await rig.generate(request(prompt_of(300), max_tokens=1, request_id="prefill"))
    steps = [[each.request_id for each in step.sequences] for step in worker.steps]
    both = [step for step in steps if "prefill" in step]
    assert len(both) == 20
    assert all(step[0] == "decode" for step in both)
    assert prefill.tokens() == undisturbed_output(prompt_of(300), 1)
    await collect(decode)


async def test_status_counts_requests_and_blocks(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(num_blocks=33), max_num_seqs=2)
    (worker,) = rig.workers
    await rig.generate(request(prompt_of(40), max_tokens=1))
    worker.hold()
    calls = [rig.stub.Generate(request(prompt_of(30, first), max_tokens=5)) for first in (50, 51, 52)]
    await worker.step_in_flight()
    await until(lambda: rig.status.num_waiting + rig.status.num_running == 3)
    status = rig.status
    assert 1 <= status.num_running <= 2
    (there,) = status.workers
    assert there.num_running == status.num_running
    assert there.num_live_blocks == 2 * there.num_running
    assert there.num_cached_blocks == 2
    assert there.num_live_blocks + there.num_cached_blocks + there.num_free_blocks == 32
    worker.release()
    for call in calls:
        await collect(call)
