"""Validates every GenerateRequest, whoever sent it, and builds the core's request from it."""

import secrets
from time import monotonic

from triptych.v1 import scheduler_pb2, types_pb2, worker_pb2

from services.scheduler.core.request import Request
from services.scheduler.sampling import common_sampling, resolve_params
from shared.errors import Reason, ServiceError, out_of_range
from shared.sampling_params import output_seed


def check_and_resolve(
    message: scheduler_pb2.GenerateRequest, info: types_pb2.ModelInfo
) -> tuple[Request, worker_pb2.SamplingStep]:
    """The core's request, and what all of its steps share. Raises ServiceError."""
    _check_identity(message, info)
    _check_prompt(message, info)
    params = resolve_params(message.sampling_params, info)
    return _make_request(message, params, info), common_sampling(params, message.prompt_token_ids)


def _check_identity(message: scheduler_pb2.GenerateRequest, info: types_pb2.ModelInfo) -> None:
    if message.model and message.model != info.model:
        text = f"model is {message.model!r}; this scheduler serves {info.model!r}"
        raise ServiceError(Reason.UNKNOWN_MODEL, text, field="model")
    if message.tokenizer_fingerprint and message.tokenizer_fingerprint != info.tokenizer_fingerprint:
        text = (
            f"tokenizer_fingerprint is {message.tokenizer_fingerprint!r}; the workers' is "
            f"{info.tokenizer_fingerprint!r}: the tokens were made by another tokenizer"
        )
        raise ServiceError(Reason.FINGERPRINT_MISMATCH, text, field="tokenizer_fingerprint")


def _check_prompt(message: scheduler_pb2.GenerateRequest, info: types_pb2.ModelInfo) -> None:
    num_tokens = len(message.prompt_token_ids)
    if num_tokens == 0:
        text = "prompt_token_ids is empty; allowed: at least one token"
        raise ServiceError(Reason.EMPTY_PROMPT, text, field="prompt_token_ids")
    if num_tokens >= info.max_model_len:
        text = (
            f"prompt_token_ids has {num_tokens} tokens; allowed: at most {info.max_model_len - 1}, which "
            f"leaves room for one of the {info.max_model_len} that prompt and output may have"
        )
        raise ServiceError(
            Reason.PROMPT_TOO_LONG,
            text,
            field="prompt_token_ids",
            prompt_tokens=num_tokens,
            max_model_len=info.max_model_len,
        )
    largest = max(message.prompt_token_ids)
    if largest >= info.vocab_size:
        index = list(message.prompt_token_ids).index(largest)
        raise out_of_range(f"prompt_token_ids[{index}]", largest, f"0 to {info.vocab_size - 1}")


def _make_request(
    message: scheduler_pb2.GenerateRequest, params: types_pb2.SamplingParams, info: types_pb2.ModelInfo
) -> Request:
    room = info.max_model_len - len(message.prompt_token_ids)
    seed = params.seed if params.HasField("seed") else secrets.randbits(64)
    eos_token_ids = () if params.ignore_eos else info.eos_token_ids
    return Request(
        generation_id=secrets.token_hex(16),
        request_id=message.request_id,
        prompt_token_ids=tuple(message.prompt_token_ids),
        max_tokens=min(params.max_tokens, room) if params.HasField("max_tokens") else room,
        seeds=tuple(output_seed(seed, index) for index in range(params.n)),
        arrival_time=monotonic(),
        stop_token_ids=frozenset((*params.stop_token_ids, *eos_token_ids)),
        min_tokens=params.min_tokens,
        prompt_logprobs=params.prompt_logprobs if params.HasField("prompt_logprobs") else None,
        priority=message.priority,
        cache_salt=message.cache_salt,
    )
