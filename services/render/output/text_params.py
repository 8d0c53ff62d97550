"""The rules of TextParams: which values are allowed, and what a render request's become for derendering."""

from collections.abc import Mapping, Sequence
from typing import Any

from triptych.v1 import render_pb2, types_pb2

from services.render.output.formats import FORMATS
from services.render.output.string_parameters import string_parameters
from shared.errors import out_of_range

MAX_STOP_STRINGS = 128
# All of them together: what is built of them takes 300 bytes for each, and 2 ms for a thousand.
MAX_STOP_CHARS = 8192


def validate_text_params(params: render_pb2.TextParams, field: str = "text_params") -> None:
    """Raises ServiceError (PARAMETER_OUT_OF_RANGE) with the path of the first bad value."""
    if len(params.stop) > MAX_STOP_STRINGS:
        raise out_of_range(f"{field}.stop", f"{len(params.stop)} texts", f"at most {MAX_STOP_STRINGS}")
    if (num_chars := sum(map(len, params.stop))) > MAX_STOP_CHARS:
        allowed = f"at most {MAX_STOP_CHARS}, all together"
        raise out_of_range(f"{field}.stop", f"{num_chars} characters", allowed)
    for index, text in enumerate(params.stop):
        if not text:
            raise out_of_range(f"{field}.stop[{index}]", "empty", "a text of at least one character")
    if params.parser not in render_pb2.Parser.values():
        names = ", ".join(render_pb2.Parser.keys())
        raise out_of_range(f"{field}.parser", params.parser, names)
    output_format = FORMATS.get(params.parser)
    if params.starts_in_reasoning and not (output_format and output_format.has_reasoning):
        raise out_of_range(f"{field}.starts_in_reasoning", True, "false, as the parser knows no reasoning")
    if params.string_parameters and not (output_format and output_format.needs_value_types):
        raise out_of_range(f"{field}.string_parameters", "set", "unset, as the parser does not need them")


def resolve_text_params(
    params: render_pb2.TextParams, sampling_params: types_pb2.SamplingParams, field: str = "text_params"
) -> render_pb2.TextParams:
    """What derendering needs: the caller's, and min_tokens from the sampling parameters, its one source.

    Raises ServiceError (PARAMETER_OUT_OF_RANGE).
    """
    if params.min_tokens:
        raise out_of_range(f"{field}.min_tokens", params.min_tokens, "unset: sampling_params has it")
    for name in ("parser", "starts_in_reasoning"):
        if value := getattr(params, name):
            raise out_of_range(f"{field}.{name}", value, "unset: the renderer sets it")
    if params.string_parameters:
        raise out_of_range(f"{field}.string_parameters", "set", "unset: the renderer sets it")
    validate_text_params(params, field)
    resolved = render_pb2.TextParams(min_tokens=sampling_params.min_tokens)
    resolved.MergeFrom(params)
    return resolved


def set_parser(
    params: render_pb2.TextParams,
    parser: render_pb2.Parser.ValueType,
    prompt: str,
    tools: Sequence[Mapping[str, Any]],
) -> None:
    """How a chat's output is to be read. prompt: what it goes on from, without tags that are only spelled."""
    params.parser = parser
    if (output_format := FORMATS.get(parser)) is not None:
        params.starts_in_reasoning = output_format.ends_in_reasoning(prompt)
        if output_format.needs_value_types:
            params.string_parameters.extend(string_parameters(tools))
