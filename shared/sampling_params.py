"""The rules of SamplingParams: which values are allowed, what unset means, which seed an output has.

Render refuses early with these rules and fills in the model's defaults; the scheduler applies the same rules
to every request.
"""

import hashlib
import math
import struct
from dataclasses import dataclass

from triptych.v1 import types_pb2

from shared.errors import out_of_range

# Each output is a sequence of its own in the batch.
MAX_N = 128


@dataclass(frozen=True)
class _Range:
    """An interval of finite numbers, closed but for what `low_is_open` says."""

    low: float
    high: float
    low_is_open: bool = False

    def __contains__(self, value: float) -> bool:
        # NaN compares false with everything, infinities lie outside every interval.
        above = self.low < value if self.low_is_open else self.low <= value
        return above and value <= self.high and math.isfinite(value)

    def __str__(self) -> str:
        high = "infinity)" if math.isinf(self.high) else f"{self.high:g}]"
        return f"{'(' if self.low_is_open else '['}{self.low:g}, {high}"


FLOAT_RANGES = {
    "temperature": _Range(0, math.inf),
    "top_p": _Range(0, 1, low_is_open=True),
    "min_p": _Range(0, 1),
    "presence_penalty": _Range(-2, 2),
    "frequency_penalty": _Range(-2, 2),
    "repetition_penalty": _Range(0, math.inf, low_is_open=True),
}
LOGIT_BIAS_RANGE = _Range(-100, 100)


def validate(
    params: types_pb2.SamplingParams,
    *,
    vocab_size: int,
    max_logprobs: int | None,
    max_model_len: int,
    field: str = "sampling_params",
) -> None:
    """Raises ServiceError (PARAMETER_OUT_OF_RANGE) with the path of the first bad value.

    max_logprobs: None skips that bound, which only the workers know. max_tokens has no upper bound: an output
    that fills the context ends with LENGTH. field: the path of `params` in the request.
    """
    # Scalars that are set, zero included.
    values = {descriptor.name: value for descriptor, value in params.ListFields()}
    for name, allowed in FLOAT_RANGES.items():
        if name in values and values[name] not in allowed:
            raise out_of_range(f"{field}.{name}", values[name], str(allowed))
    if values.get("max_tokens") == 0:
        raise out_of_range(f"{field}.max_tokens", 0, "1 or more; unset means no limit")
    if not 1 <= values.get("n", 1) <= MAX_N:
        raise out_of_range(f"{field}.n", params.n, f"1 to {MAX_N}")
    most = min(max_model_len, values.get("max_tokens", max_model_len))
    if params.min_tokens > most:
        raise out_of_range(
            f"{field}.min_tokens", params.min_tokens, f"0 to {most}, the most tokens to generate"
        )
    for name in ("logprobs", "prompt_logprobs"):
        if max_logprobs is not None and values.get(name, 0) > max_logprobs:
            raise out_of_range(f"{field}.{name}", values[name], f"0 to {max_logprobs}")
    _validate_token_ids(params, vocab_size, field)


def _validate_token_ids(params: types_pb2.SamplingParams, vocab_size: int, field: str) -> None:
    allowed = f"0 to {vocab_size - 1}, the ids of the vocabulary"
    for index, token_id in enumerate(params.stop_token_ids):
        if token_id >= vocab_size:
            raise out_of_range(f"{field}.stop_token_ids[{index}]", token_id, allowed)
    for token_id, bias in params.logit_bias.items():
        if token_id >= vocab_size:
            raise out_of_range(f"{field}.logit_bias[{token_id}]", token_id, allowed)
        if bias not in LOGIT_BIAS_RANGE:
            raise out_of_range(f"{field}.logit_bias[{token_id}]", bias, str(LOGIT_BIAS_RANGE))


def resolve(params: types_pb2.SamplingParams, defaults: types_pb2.SamplingParams) -> types_pb2.SamplingParams:
    """A copy of `params` with what is unset filled in from the model's defaults. Zero is not unset."""
    resolved = types_pb2.SamplingParams()
    resolved.CopyFrom(defaults)
    resolved.MergeFrom(params)
    return resolved


def output_seed(seed: int, output_index: int) -> int:
    """The seed of one of a request's outputs, as SamplingParams.seed defines it."""
    if output_index == 0:
        return seed
    digest = hashlib.sha256(struct.pack("<QQ", seed, output_index)).digest()
    return int.from_bytes(digest[:8], "little")
