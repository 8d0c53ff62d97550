"""The rules of SamplingParams."""

import hashlib
import math
from typing import Any

import pytest
from triptych.v1 import types_pb2

from shared.errors import Reason, ServiceError
from shared.sampling_params import MAX_N, output_seed, resolve, validate

Params = types_pb2.SamplingParams


def check(params: types_pb2.SamplingParams, **limits: Any) -> None:
    """Validates with limits of a small model."""
    validate(params, **{"vocab_size": 1000, "max_logprobs": 5, "max_model_len": 100, **limits})


BAD = [
    *(
        {name: math.nan}
        for name in ("temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty")
    ),
    *({"temperature": value} for value in (-0.1, math.inf, -math.inf)),
    *({"top_p": value} for value in (0.0, -1.0, 1.01)),
    *({"min_p": value} for value in (-0.01, 1.01)),
    *({"presence_penalty": value} for value in (-2.1, 2.1)),
    *({"frequency_penalty": value} for value in (-2.1, math.inf)),
    *({"repetition_penalty": value} for value in (0.0, -1.0, math.inf)),
    {"max_tokens": 0},
    {"min_tokens": 101},
    {"min_tokens": 11, "max_tokens": 10},
    *({"n": value} for value in (0, MAX_N + 1, 2**32 - 1)),
    {"logprobs": 6},
    {"prompt_logprobs": 2**32 - 1},
    {"stop_token_ids": [5, 1000]},
    {"stop_token_ids": [2**32 - 1]},
    *({"logit_bias": bias} for bias in ({1000: 1.0}, {1: 100.5}, {1: math.nan}, {10**9: 0.0})),
]

GOOD = [
    {},
    *({"temperature": value} for value in (0.0, 1e-40, 1e-5, 1e6)),
    *({"top_p": value} for value in (1e-30, 1.0)),
    *({"top_k": value} for value in (0, 1, 2**32 - 1)),
    *({"min_p": value} for value in (0.0, 1.0)),
    *({"presence_penalty": value, "frequency_penalty": -value} for value in (-2.0, 2.0)),
    {"repetition_penalty": 1e-3},
    {"seed": 2**64 - 1},
    *({"max_tokens": value} for value in (1, 100, 2**32 - 1)),
    {"min_tokens": 10, "max_tokens": 10},
    {"n": MAX_N},
    {"logprobs": 0, "prompt_logprobs": 5},
    {"stop_token_ids": [0, 999]},
    {"logit_bias": {0: -100.0, 999: 100.0}},
]


@pytest.mark.parametrize("fields", BAD, ids=str)
def test_a_bad_value_is_refused_with_its_path(fields: dict[str, Any]) -> None:
    with pytest.raises(ServiceError) as caught:
        check(Params(**fields))
    assert caught.value.reason is Reason.PARAMETER_OUT_OF_RANGE
    assert caught.value.field.startswith(f"sampling_params.{next(iter(fields))}")
    assert caught.value.metadata["allowed"]


@pytest.mark.parametrize("fields", GOOD, ids=str)
def test_a_good_value_is_let_through(fields: dict[str, Any]) -> None:
    check(Params(**fields))


def test_the_path_names_the_element_and_where_the_parameters_are() -> None:
    with pytest.raises(ServiceError) as caught:
        validate(
            Params(stop_token_ids=[1, 2, 5000]),
            vocab_size=1000, max_logprobs=5, max_model_len=100, field="request.sampling_params",
        )  # fmt: skip
    assert caught.value.field == "request.sampling_params.stop_token_ids[2]"


def test_an_unknown_bound_is_left_to_who_knows_it() -> None:
    check(Params(logprobs=1000), max_logprobs=None)


def test_what_is_unset_comes_from_the_defaults() -> None:
    defaults = Params(temperature=0.6, top_p=0.95, max_tokens=128)
    resolved = resolve(Params(top_p=0.5, stop_token_ids=[3]), defaults)
    assert resolved == Params(temperature=0.6, top_p=0.5, max_tokens=128, stop_token_ids=[3])
    assert defaults == Params(temperature=0.6, top_p=0.95, max_tokens=128), "the defaults are not touched"


def test_zero_is_not_unset() -> None:
    defaults = Params(temperature=0.6, min_p=0.1, seed=9, logprobs=3, presence_penalty=1, min_tokens=4)
    zeros = Params(temperature=0, min_p=0, seed=0, logprobs=0, presence_penalty=0, min_tokens=0)
    assert resolve(zeros, defaults) == zeros


def test_output_0_has_the_seed_itself_and_the_others_a_hash() -> None:
    assert output_seed(42, 0) == 42
    digest = hashlib.sha256((42).to_bytes(8, "little") + (3).to_bytes(8, "little")).digest()
    assert output_seed(42, 3) == int.from_bytes(digest[:8], "little")
    assert len({output_seed(2**64 - 1, index) for index in range(100)}) == 100
