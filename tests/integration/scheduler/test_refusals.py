"""What Generate refuses: status, reason, field; and that nothing is sent before a request is admitted."""

import math
from typing import Any

import pytest
from grpc import StatusCode
from triptych.v1 import scheduler_pb2, types_pb2

from tests.integration.scheduler.client import (
    collect,
    prompt_of,
    read_until,
    refusal_of,
    request,
    until,
)
from tests.integration.scheduler.conftest import MakeRig, Rig
from tests.integration.scheduler.frames import DATA, END_STREAM, HEADERS, recorded_frames
from tests.support.fake_worker import FakeWorker
from tests.support.fake_worker_model import VOCAB_SIZE, undisturbed_output

NAN, INFINITY = math.nan, math.inf


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    return await make_rig(FakeWorker(max_model_len=64))


BAD_PARAMS: list[tuple[str, dict[str, Any]]] = [
    *(("temperature", {"temperature": value}) for value in (-0.1, NAN, INFINITY, -INFINITY)),
    *(("top_p", {"top_p": value}) for value in (0.0, -1.0, 1.01, NAN)),
    *(("min_p", {"min_p": value}) for value in (-0.1, 1.1, NAN)),
    *(("presence_penalty", {"presence_penalty": value}) for value in (-2.1, 2.1, NAN)),
    *(("frequency_penalty", {"frequency_penalty": value}) for value in (-2.1, 2.1, NAN)),
    *(("repetition_penalty", {"repetition_penalty": value}) for value in (0.0, -1.0, NAN, INFINITY)),
    ("max_tokens", {"max_tokens": 0}),
    ("n", {"n": 0}),
    ("n", {"n": 2**32 - 1}),
    ("min_tokens", {"min_tokens": 6, "max_tokens": 5}),
    ("min_tokens", {"min_tokens": 65}),
    ("logprobs", {"logprobs": 21}),
    ("prompt_logprobs", {"prompt_logprobs": 21}),
    ("stop_token_ids[1]", {"stop_token_ids": [5, VOCAB_SIZE]}),
    ("stop_token_ids[0]", {"stop_token_ids": [2**32 - 1]}),
    (f"logit_bias[{VOCAB_SIZE}]", {"logit_bias": {VOCAB_SIZE: 1.0}}),
    ("logit_bias[5]", {"logit_bias": {5: 100.5}}),
    ("logit_bias[5]", {"logit_bias": {5: NAN}}),
]


@pytest.mark.parametrize(("field", "params"), BAD_PARAMS, ids=str)
async def test_a_parameter_out_of_range_is_named_and_the_next_request_is_fine(
    rig: Rig, field: str, params: dict[str, Any]
) -> None:
    refusal = await refusal_of(rig.stub.Generate(request(prompt_of(5), **params)))
    assert (refusal.code, refusal.reason) == (StatusCode.INVALID_ARGUMENT, "PARAMETER_OUT_OF_RANGE")
    assert refusal.field == f"sampling_params.{field}"
    assert (await rig.generate(request(prompt_of(5), max_tokens=2))).tokens()
    assert len(rig.workers[0].steps) == 2


async def test_values_at_the_borders_are_served(rig: Rig) -> None:
    borders: list[dict[str, Any]] = [
        {"temperature": 1e-40, "top_p": 1e-30, "min_p": 1, "top_k": 1, "seed": 2**64 - 1},
        {"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 1e-30, "logprobs": 20},
        {"logit_bias": {0: -100, VOCAB_SIZE - 1: 50}, "stop_token_ids": [VOCAB_SIZE - 1], "min_tokens": 2},
    ]
    for params in borders:
        answer = await rig.generate(request([0, VOCAB_SIZE - 1], max_tokens=2, **params))
        assert len(answer.tokens()) == 2


async def test_an_empty_prompt_is_refused(rig: Rig) -> None:
    refusal = await refusal_of(rig.stub.Generate(request([])))
    assert (refusal.code, refusal.reason) == (StatusCode.INVALID_ARGUMENT, "EMPTY_PROMPT")
    assert refusal.field == "prompt_token_ids"


async def test_a_token_outside_the_vocabulary_is_named_by_its_place(rig: Rig) -> None:
    refusal = await refusal_of(rig.stub.Generate(request([1, 2, VOCAB_SIZE, 3])))
    assert (refusal.code, refusal.reason) == (StatusCode.INVALID_ARGUMENT, "PARAMETER_OUT_OF_RANGE")
    assert refusal.field == "prompt_token_ids[2]"


# R11. With C = 64: what remains beside the prompt, or None if the request is refused.
@pytest.mark.parametrize("length", [1, 62, 63, 64, 65])
@pytest.mark.parametrize("max_tokens", [None, 0, 1, 2, 64, 2**32 - 1])
async def test_prompt_and_output_share_the_context(rig: Rig, length: int, max_tokens: int | None) -> None:
    params: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
    prompt = prompt_of(length)
    call = rig.stub.Generate(request(prompt, **params))
    room = 64 - length
    if room < 1:
        refusal = await refusal_of(call)
        assert (refusal.code, refusal.reason) == (StatusCode.INVALID_ARGUMENT, "PROMPT_TOO_LONG")
        assert refusal.metadata["prompt_tokens"] == str(length)
        assert refusal.metadata["max_model_len"] == "64"
        assert str(length) in refusal.message
        assert "63" in refusal.message
        assert refusal.field == "prompt_token_ids"
    elif max_tokens == 0:
        assert (await refusal_of(call)).field == "sampling_params.max_tokens"
    else:
        answer = await collect(call)
        expected = room if max_tokens is None else min(room, max_tokens)
        assert answer.admitted.max_tokens == expected
        assert answer.tokens() == undisturbed_output(prompt, expected)
        assert answer.finished().finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_a_small_pool_is_the_limit_that_applies(make_rig: MakeRig) -> None:
    """S1: five blocks of 16, one of them the null block."""
    rig = await make_rig(FakeWorker(num_blocks=5))
    info = (await rig.stub.GetModelInfo(scheduler_pb2.SchedulerServiceGetModelInfoRequest())).model_info
    assert info.max_model_len == 64
    refusal = await refusal_of(rig.stub.Generate(request(prompt_of(64))))
    assert (refusal.reason, refusal.metadata["max_model_len"]) == ("PROMPT_TOO_LONG", "64")
    answer = await rig.generate(request(prompt_of(60)))
    assert answer.tokens() == undisturbed_output(prompt_of(60), 4)


async def test_another_models_name_is_unknown_and_ours_is_known(rig: Rig) -> None:
    message = request(prompt_of(5), max_tokens=1)
    message.model = "another"
    refusal = await refusal_of(rig.stub.Generate(message))
    assert (refusal.code, refusal.reason) == (StatusCode.NOT_FOUND, "UNKNOWN_MODEL")
    assert refusal.field == "model"
    message.model = "fake"
    assert (await rig.generate(message)).tokens()


async def test_tokens_of_another_tokenizer_are_refused(rig: Rig) -> None:
    message = request(prompt_of(5), max_tokens=1)
    message.tokenizer_fingerprint = "tokenizer-2"
    refusal = await refusal_of(rig.stub.Generate(message))
    assert (refusal.code, refusal.reason) == (StatusCode.FAILED_PRECONDITION, "FINGERPRINT_MISMATCH")
    assert refusal.field == "tokenizer_fingerprint"
    message.tokenizer_fingerprint = "tokenizer-1"
    assert (await rig.generate(message)).tokens()


async def test_a_full_queue_refuses_and_says_when_to_retry(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(), max_num_seqs=1, max_waiting=2)
    rig.workers[0].hold()
    calls = [rig.stub.Generate(request(prompt_of(5, 1), max_tokens=2))]
    await read_until(calls[0], "scheduled")  # it no longer waits
    calls += [rig.stub.Generate(request(prompt_of(5, first), max_tokens=2)) for first in (2, 3)]
    for call in calls[1:]:
        await read_until(call, "admitted")
    refusal = await refusal_of(rig.stub.Generate(request(prompt_of(5))))
    assert (refusal.code, refusal.reason) == (StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert refusal.retry_after is not None
    assert refusal.retry_after > 0
    rig.workers[0].release()
    for call in calls:
        assert len((await collect(call)).tokens()) == 2


async def test_without_a_queue_what_can_start_at_once_is_served(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(), max_num_seqs=2, max_waiting=0)
    rig.workers[0].hold()
    first = rig.stub.Generate(request(prompt_of(5), max_tokens=2))
    await rig.workers[0].step_in_flight()
    second = rig.stub.Generate(request(prompt_of(6), max_tokens=2))
    assert (await second.read()).HasField("admitted")  # it starts with the next step
    rig.workers[0].release()
    assert len((await collect(first)).tokens()) == len((await collect(second)).tokens()) == 2


async def test_the_outputs_of_one_request_fill_the_queue_once(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.02), max_num_seqs=1, max_waiting=1)
    first = rig.stub.Generate(request(prompt_of(5), max_tokens=3, n=8))
    await read_until(first, "chunk")
    assert (rig.status.num_running, rig.status.num_waiting) == (1, 0)
    second = await rig.generate(request(prompt_of(6), max_tokens=2))
    assert len(second.tokens()) == 2
    await collect(first)


async def test_without_a_worker_requests_are_refused_and_may_be_retried(make_rig: MakeRig) -> None:
    worker = FakeWorker(port=1)  # nobody listens there
    rig = await make_rig(worker, num_ready=0)
    refusal = await refusal_of(rig.stub.Generate(request(prompt_of(5))))
    assert (refusal.code, refusal.reason) == (StatusCode.UNAVAILABLE, "NO_WORKER")
    assert refusal.retry_after is not None
    info = await refusal_of(rig.stub.GetModelInfo(scheduler_pb2.SchedulerServiceGetModelInfoRequest()))
    assert (info.code, info.reason) == (StatusCode.UNAVAILABLE, "NO_WORKER")


async def test_a_draining_scheduler_refuses_new_work_and_finishes_what_runs(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.01), num_ready=1)
    call = rig.stub.Generate(request(prompt_of(5), max_tokens=20))
    await read_until(call, "chunk")
    rig.service.server.drain.draining = True
    refusal = await refusal_of(rig.stub.Generate(request(prompt_of(5))))
    assert (refusal.code, refusal.reason) == (StatusCode.UNAVAILABLE, "DRAINING")
    assert (await collect(call)).finished().usage.completion_tokens == 20


async def test_a_refusal_is_one_frame_and_nothing_was_sent_before_it(rig: Rig) -> None:
    """G12: trailers only, as HTTP/2 has it: one HEADERS frame that ends the stream."""
    async with recorded_frames(rig.service.address) as (stub, frames):
        await refusal_of(stub.Generate(request([])))
        assert [kind for kind, _ in frames] == [HEADERS]
        assert frames[0][1] & END_STREAM
        frames.clear()
        await collect(stub.Generate(request(prompt_of(5), max_tokens=1)))
        kinds = [kind for kind, _ in frames]
        assert (kinds[0], kinds[1], kinds[-1]) == (HEADERS, DATA, HEADERS)


async def test_nothing_is_sent_while_a_full_queue_refuses(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(), max_num_seqs=1, max_waiting=0)
    rig.workers[0].hold()
    running = rig.stub.Generate(request(prompt_of(5), max_tokens=1))
    await read_until(running, "scheduled")
    async with recorded_frames(rig.service.address) as (stub, frames):
        assert (await refusal_of(stub.Generate(request(prompt_of(5))))).reason == "QUEUE_FULL"
        assert [kind for kind, _ in frames] == [HEADERS]
    rig.workers[0].release()
    await collect(running)
    await until(lambda: rig.is_idle)
