"""How a request ends before its time: past its deadline, aborted, read too slowly, failed."""

import grpc
from grpc import StatusCode
from triptych.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2

from tests.integration.scheduler.client import (
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

ABORT = types_pb2.FINISH_REASON_ABORT


async def abort(rig: Rig, generation_id: str, output_index: int | None = None) -> int:
    """How many outputs were aborted."""
    message = scheduler_pb2.AbortRequestRequest(generation_id=generation_id, output_index=output_index)
    return int((await rig.stub.AbortRequest(message)).num_aborted)


async def test_a_deadline_that_passes_in_the_queue_means_never_scheduled(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(), max_num_seqs=1)
    worker = rig.workers[0]
    worker.hold()
    running = rig.stub.Generate(request(prompt_of(5), max_tokens=3))
    await worker.step_in_flight()
    late = await refusal_of(rig.stub.Generate(request(prompt_of(9), request_id="late"), timeout=0.15))
    assert late.code is StatusCode.DEADLINE_EXCEEDED
    await until(lambda: rig.status.num_waiting == 0)
    worker.release()
    await collect(running)
    assert all(each.request_id != "late" for step in worker.steps for each in step.sequences)


async def test_a_deadline_that_passes_while_running_frees_everything(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.02))
    refusal = await refusal_of(rig.stub.Generate(request(prompt_of(40), max_tokens=400), timeout=0.2))
    assert refusal.code is StatusCode.DEADLINE_EXCEEDED
    await until(lambda: rig.is_idle)


# AbortRequest.


async def test_aborting_a_request_ends_each_output_with_abort_and_the_call_well(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.01), max_num_seqs=2)
    call = rig.stub.Generate(request(prompt_of(20), max_tokens=400, n=4))  # two run, two wait
    generation_id = (await read_until(call, "admitted")).admitted.generation_id
    for _ in range(8):
        await call.read()
    assert await abort(rig, generation_id) == 4
    answer = await collect(call)
    assert [answer.finished(index).finish_reason for index in range(4)] == [ABORT] * 4
    assert await abort(rig, generation_id) == 0
    await until(lambda: rig.is_idle)


async def test_aborting_one_output_leaves_the_others_as_they_were(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.005))
    prompt = prompt_of(20)
    call = rig.stub.Generate(request(prompt, max_tokens=30, n=3, temperature=1, seed=5))
    admitted = (await read_until(call, "admitted")).admitted
    for _ in range(6):
        await call.read()
    assert await abort(rig, admitted.generation_id, 1) == 1
    assert await abort(rig, admitted.generation_id, 1) == 0
    assert await abort(rig, admitted.generation_id, 99) == 0
    answer = await collect(call)
    assert answer.finished(1).finish_reason == ABORT
    for index in (0, 2):
        expected = undisturbed_output(prompt, 30, admitted.seeds[index])
        assert answer.tokens(index) == expected[len(expected) - len(answer.tokens(index)) :]
        assert answer.finished(index).finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_aborting_the_first_output_before_its_prompt_is_computed_lets_the_others_run(
    make_rig: MakeRig,
) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.01), max_num_batched_tokens=8)
    prompt = prompt_of(40)
    call = rig.stub.Generate(request(prompt, max_tokens=5, n=2, temperature=1, seed=5))
    admitted = (await read_until(call, "admitted")).admitted
    await read_until(call, "scheduled")
    assert await abort(rig, admitted.generation_id, 0) == 1
    answer = await collect(call)
    assert answer.tokens(0) == []
    assert answer.tokens(1) == undisturbed_output(prompt, 5, admitted.seeds[1])


async def test_aborting_what_waits_is_in_flight_unknown_or_finished_never_fails(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(), max_num_seqs=1)
    worker = rig.workers[0]
    worker.hold()
    calls = [rig.stub.Generate(request(prompt_of(5), max_tokens=50)) for _ in range(2)]
    ids = [(await read_until(call, "admitted")).admitted.generation_id for call in calls]
    await worker.step_in_flight()
    assert await abort(rig, ids[1]) == 1
    assert (await collect(calls[1])).finished().finish_reason == ABORT
    assert await abort(rig, ids[0]) == 1
    assert (await collect(calls[0])).finished().finish_reason == ABORT  # at once, not when the step is back
    worker.release()
    assert [await abort(rig, each) for each in (*ids, "unknown", "")] == [0, 0, 0, 0]
    await until(lambda: rig.is_idle)


# Slow readers, broken rows.


async def test_a_slow_reader_ends_alone_and_others_keep_their_speed(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(max_model_len=4096), output_buffer_bytes=4096)
    # A channel that never widens its window of 64 KiB; 20 alternatives make 250 bytes a token.
    options = [("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(str(rig.service.address), options=options) as channel:
        slow = scheduler_pb2_grpc.SchedulerServiceStub(channel).Generate(
            request(prompt_of(5), max_tokens=3000, logprobs=20)
        )
        await read_until(slow, "chunk")
        prompt = prompt_of(9)
        fast = await rig.generate(request(prompt, max_tokens=500, logprobs=20))
        assert fast.tokens() == undisturbed_output(prompt, 500)
        await until(lambda: rig.is_idle, seconds=10)
        assert sum(len(step.sequences) for step in rig.workers[0].steps) < 2000
        refusal = await refusal_of(slow)
    assert (refusal.code, refusal.reason) == (StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER")


async def test_a_message_larger_than_the_buffer_reaches_a_reader_who_reads(make_rig: MakeRig) -> None:
    """S13: prompt log-probabilities of one step are one message."""
    rig = await make_rig(FakeWorker(max_model_len=4096), output_buffer_bytes=1024)
    prompt = prompt_of(2000)
    answer = await rig.generate(request(prompt, max_tokens=3, prompt_logprobs=20))
    assert sum(len(part.positions) for part in answer.of_kind("prompt_logprobs")) == 1999
    assert answer.tokens() == undisturbed_output(prompt, 3)


async def test_a_row_without_finite_logits_fails_its_own_request_only(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.01))
    rig.workers[0].failing_request_ids = {"bad"}
    good = rig.stub.Generate(request(prompt_of(5), max_tokens=20))
    await read_until(good, "chunk")
    refusal = await refusal_of(rig.stub.Generate(request(prompt_of(9), request_id="bad", n=3)))
    assert (refusal.code, refusal.reason) == (StatusCode.INTERNAL, "SEQUENCE_FAILED")
    assert "NaN" in refusal.message
    assert (await collect(good)).finished().usage.completion_tokens == 20
    await until(lambda: rig.is_idle)


async def test_what_was_generated_before_a_failure_arrives_before_the_error(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.01))
    call = rig.stub.Generate(request(prompt_of(5), max_tokens=50, request_id="bad"))
    await read_until(call, "chunk")
    rig.workers[0].failing_request_ids = {"bad"}
    assert (await refusal_of(call)).reason == "SEQUENCE_FAILED"
