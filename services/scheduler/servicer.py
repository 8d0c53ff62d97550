"""SchedulerService: checks everything about a request, always, then hands it to the engine."""

import secrets
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

from triptych.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2

from services.scheduler.active_request import ActiveRequest
from services.scheduler.core.request import Request
from services.scheduler.engine import Engine
from services.scheduler.output_stream import OutputStream
from services.scheduler.step import fixed_sampling
from shared.errors import Reason, ServiceError, out_of_range
from shared.interceptors import DrainState
from shared.log import get_logger
from shared.request_context import set_request_id
from shared.sampling_params import output_seed, resolve, validate

_log = get_logger()

# What unset means, by types.proto.
_DEFAULTS = types_pb2.SamplingParams(
    temperature=1, top_p=1, min_p=0, presence_penalty=0, frequency_penalty=0, repetition_penalty=1, n=1
)


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Tokens in, tokens out."""

    def __init__(self, engine: Engine, drain: DrainState, output_buffer_bytes: int) -> None:
        self._engine = engine
        self._drain = drain
        self._output_buffer_bytes = output_buffer_bytes

    async def Generate(
        self, request: scheduler_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[scheduler_pb2.GenerateResponse]:
        """Whatever ends the call, the request leaves the engine with it."""
        set_request_id(request.request_id)
        active = self._admit(request)
        generation_id = active.request.generation_id
        try:
            async for event in active.stream:
                yield event
        finally:
            self._engine.abort(generation_id)
            finished = active.request
            _log.info(
                "generated",
                generation_id=generation_id,
                prompt_tokens=len(finished.prompt_token_ids),
                cached_tokens=finished.num_cached_tokens,
                completion_tokens=finished.completion_tokens,
                seconds=round(monotonic() - finished.arrival_time, 4),
            )

    async def GetModelInfo(
        self, request: scheduler_pb2.SchedulerServiceGetModelInfoRequest, context: Any
    ) -> scheduler_pb2.SchedulerServiceGetModelInfoResponse:
        """The model, with the pool's limits."""
        return scheduler_pb2.SchedulerServiceGetModelInfoResponse(model_info=self._engine.pool.model_info())

    async def AbortRequest(
        self, request: scheduler_pb2.AbortRequestRequest, context: Any
    ) -> scheduler_pb2.AbortRequestResponse:
        """Ends a request or one output of it."""
        output_index = request.output_index if request.HasField("output_index") else None
        num_aborted = self._engine.abort(request.generation_id, output_index)
        return scheduler_pb2.AbortRequestResponse(num_aborted=num_aborted)

    async def GetStatus(
        self, request: scheduler_pb2.GetStatusRequest, context: Any
    ) -> scheduler_pb2.GetStatusResponse:
        """The load."""
        status = self._engine.status()
        status.draining = self._drain.draining
        return status

    def _admit(self, message: scheduler_pb2.GenerateRequest) -> ActiveRequest:
        """Checks, resolves, submits. Nothing waits here, so what is checked still holds when submitted."""
        self._engine.check_ready()
        info = self._engine.pool.model_info()
        _check_identity(message, info)
        _check_prompt(message, info)
        params = resolve(message.sampling_params, _DEFAULTS)
        validate(
            params,
            vocab_size=info.vocab_size,
            max_logprobs=info.max_logprobs,
            max_model_len=info.max_model_len,
        )
        self._engine.check_room()
        request = _make_request(message, params, info)
        sampling = fixed_sampling(request, params)
        active = ActiveRequest(request, sampling, OutputStream(self._output_buffer_bytes))
        self._engine.submit(active)
        return active


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
