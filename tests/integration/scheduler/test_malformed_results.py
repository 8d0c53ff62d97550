"""A worker that answers what was not asked: what ran there fails or moves, the rest goes on."""

import asyncio
from typing import Any

import pytest
from grpc import StatusCode
from triptych.v1 import worker_pb2

from tests.integration.scheduler.client import collect, prompt_of, refusal_of, request
from tests.integration.scheduler.conftest import MakeRig
from tests.support.fake_worker import FakeWorker
from tests.support.fake_worker_model import undisturbed_output


def _wrong_step_id(result: worker_pb2.StepResult) -> None:
    result.step_id += 1


def _no_sequences(result: worker_pb2.StepResult) -> None:
    del result.sequences[:]


def _wrong_key(result: worker_pb2.StepResult) -> None:
    result.sequences[0].sequence_key += 7


def _no_sample(result: worker_pb2.StepResult) -> None:
    del result.sequences[0].samples[:]


def _empty_sample(result: worker_pb2.StepResult) -> None:
    result.sequences[0].samples[0].ClearField("token_id")


def _token_past_the_vocabulary(result: worker_pb2.StepResult) -> None:
    result.sequences[0].samples[0].token_id = 2**32 - 1


def _prompt_logprobs_that_nobody_asked_for(result: worker_pb2.StepResult) -> None:
    result.sequences[0].prompt_logprobs.add()


MANGLERS = [
    _wrong_step_id,
    _no_sequences,
    _wrong_key,
    _no_sample,
    _empty_sample,
    _token_past_the_vocabulary,
    _prompt_logprobs_that_nobody_asked_for,
]


@pytest.mark.parametrize("mangle", MANGLERS)
async def test_a_malformed_result_fails_what_ran_there_and_the_scheduler_goes_on(
    make_rig: MakeRig, mangle: Any
) -> None:
    rig = await make_rig(FakeWorker())
    (worker,) = rig.workers
    worker.mangle = mangle
    refusal = await asyncio.wait_for(refusal_of(rig.stub.Generate(request(prompt_of(5)))), 5)
    assert (refusal.code, refusal.reason) == (StatusCode.UNAVAILABLE, "WORKER_LOST")
    worker.mangle = None
    await rig.until_ready()
    assert (await rig.generate(request(prompt_of(5), max_tokens=2))).tokens()


async def test_after_a_malformed_result_another_worker_goes_on(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(), FakeWorker())
    rig.workers[0].mangle = _no_sample
    calls = [rig.stub.Generate(request(prompt_of(20, first), max_tokens=5)) for first in range(8)]
    for first, call in enumerate(calls):
        assert (await collect(call)).tokens() == undisturbed_output(prompt_of(20, first), 5)
    assert rig.workers[0].steps
