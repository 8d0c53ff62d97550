"""SamplingParams as the worker gets them: resolved, none left out, with what the penalties need."""

from typing import Any

import pytest
from triptych.v1 import types_pb2, worker_pb2

from services.scheduler.core.request import Request, Sequence
from services.scheduler.sampling import add_sampling, common_sampling, resolve_params
from shared.errors import ServiceError
from tests.support.fake_worker_model import make_info

# What the request itself carries, or uses up before a step is built.
OF_THE_REQUEST = {"seed", "max_tokens", "min_tokens", "stop_token_ids", "ignore_eos", "prompt_logprobs", "n"}


def make_sequence(output: tuple[int, ...] = (), **fields: Any) -> Sequence:
    request = Request("g", "r", (5, 6, 7, 5, 8), max_tokens=9, seeds=(99,), arrival_time=0.0, **fields)
    request.sequences[0].output_token_ids = list(output)
    return request.sequences[0]


def sampling(sequence: Sequence, **params: Any) -> worker_pb2.SamplingStep:
    """Of a step of three tokens."""
    resolved = resolve_params(types_pb2.SamplingParams(**params), make_info())
    step = worker_pb2.SequenceStep(token_ids=[1, 2, 3])
    add_sampling(step, common_sampling(resolved, sequence.request.prompt_token_ids), sequence)
    return step.samplings[0]


def test_every_parameter_reaches_the_worker_or_is_the_request_s() -> None:
    values: dict[str, Any] = {"logit_bias": {3: 1.5}, "repetition_penalty": 0.5, "logprobs": 2, "top_k": 7}
    fractions = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")
    values |= dict.fromkeys(fractions, 0.25)
    assert set(values) | OF_THE_REQUEST == set(types_pb2.SamplingParams.DESCRIPTOR.fields_by_name)
    step = sampling(make_sequence(), **values)
    given = {name: getattr(step, name) for name in values}
    assert given == values


def test_a_value_out_of_range_is_refused_with_its_path() -> None:
    with pytest.raises(ServiceError) as caught:
        sampling(make_sequence(), top_p=2)
    assert caught.value.field == "sampling_params.top_p"


def test_the_token_is_chosen_from_the_last_of_the_step_with_the_output_s_seed() -> None:
    step = sampling(make_sequence(output=(21, 22)), seed=5)
    assert (step.query_index, step.seed, step.num_output_tokens) == (2, 99, 2)


def test_sampling_is_fully_resolved_and_zero_stays_zero() -> None:
    step = sampling(
        make_sequence(), temperature=0, top_p=0.5, top_k=7, min_p=0.25, logit_bias={3: -100, 0: 1}, logprobs=0
    )
    assert (step.temperature, step.top_p, step.top_k, step.min_p) == (0, 0.5, 7, 0.25)
    assert dict(step.logit_bias) == {3: -100, 0: 1}
    assert step.HasField("logprobs")
    assert (step.seed, step.num_output_tokens) == (99, 0)


def test_what_is_unset_means_its_default() -> None:
    step = sampling(make_sequence())
    assert (step.top_k, step.repetition_penalty) == (0, 1)
    assert not step.HasField("logprobs")
    assert not step.prompt_token_ids
    assert not step.output_token_counts
    assert not step.banned_token_ids


def test_a_repetition_penalty_needs_prompt_and_output() -> None:
    step = sampling(make_sequence(output=(21, 22, 21)), repetition_penalty=1.5)
    assert list(step.prompt_token_ids) == [5, 6, 7, 8]
    assert dict(step.output_token_counts) == {21: 2, 22: 1}


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_the_other_penalties_need_the_output_only(penalty: str) -> None:
    step = sampling(make_sequence(output=(21, 21)), **{penalty: -0.5})
    assert not step.prompt_token_ids
    assert dict(step.output_token_counts) == {21: 2}


def test_ending_tokens_are_banned_until_min_tokens_are_there() -> None:
    fields: dict[str, Any] = {"stop_token_ids": frozenset((2, 1)), "min_tokens": 2}
    banned = [
        list(sampling(make_sequence(output=output, **fields)).banned_token_ids)
        for output in ((), (21,), (21, 22), (21, 22, 23))
    ]
    assert banned == [[1, 2], [1, 2], [], []]
