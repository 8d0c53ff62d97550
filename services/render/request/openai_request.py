"""From an OpenAI-style chat request, as JSON, to RenderChatRequest.

What a key means is OpenAI's, or vLLM's for those that OpenAI does not have; null is the same as absent. A key
that is not known, or asks for what rendering cannot give, is refused: ignored, it would make a wrong golden
file.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from triptych.v1 import render_pb2, types_pb2

from services.render.request.conversation import CONTINUED_FIELDS
from services.render.request.json_text import LONE_SURROGATE, has_lone_surrogate, read_json
from shared.errors import Reason, ServiceError, out_of_range


def read_openai_request(text: str) -> render_pb2.RenderChatRequest:
    """Raises ServiceError: INVALID_JSON, INVALID_TEXT, PARAMETER_OUT_OF_RANGE, with the key's path."""
    body = _parse(text)
    sampling_params, text_params = types_pb2.SamplingParams(), render_pb2.TextParams()
    request = render_pb2.RenderChatRequest()
    given = {key: value for key, value in body.items() if value is not None}
    for key, value in given.items():
        if key in _SAMPLING:
            # In vLLM, -1 is all tokens, as 0 is.
            _set(sampling_params, key, key, 0 if (key, value) == ("top_k", -1) else value)
        elif key in _TEXT:
            _set(text_params, _TEXT[key], key, value)
        elif key in _REQUEST:
            _set(request, key, key, value)
        elif key in _ONLY:
            if json.dumps(value) not in map(json.dumps, _ONLY[key]):  # 1 is not true
                raise out_of_range(key, value, " or ".join(map(json.dumps, _ONLY[key])))
        elif key not in _READ_BELOW and key not in _WITHOUT_EFFECT:
            message = f"the key {key!r} is not known here"
            raise ServiceError(Reason.PARAMETER_OUT_OF_RANGE, message, field=key)
    _read_continuation(given, request)
    _read_lists(given, sampling_params, text_params)
    _read_logprobs(given, sampling_params)
    _read_max_tokens(given, sampling_params)
    request.sampling_params.CopyFrom(sampling_params)
    request.text_params.CopyFrom(text_params)
    messages = _list("messages", given.get("messages", []))
    request.messages.extend(_read_message(each, f"messages[{i}]") for i, each in enumerate(messages))
    if given.get("tool_choice") != "none":
        tools = _list("tools", given.get("tools", []))
        request.tools_json.extend(_to_json(_object(f"tools[{i}]", tool)) for i, tool in enumerate(tools))
    if "chat_template_kwargs" in given:
        variables = _object("chat_template_kwargs", given["chat_template_kwargs"])
        request.chat_template_kwargs_json = _to_json(variables)
    return request


def _parse(text: str) -> dict[str, Any]:
    try:
        body = read_json(text)
    except ValueError as error:
        raise ServiceError(Reason.INVALID_JSON, f"not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise ServiceError(Reason.INVALID_JSON, "not a JSON object")
    if has_lone_surrogate(body):
        raise ServiceError(Reason.INVALID_TEXT, LONE_SURROGATE)
    return body


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _set(message: Message, name: str, path: str, value: Any) -> None:
    """A scalar field. Its type alone is checked here: the renderer knows which values make sense."""
    setattr(message, name, _CHECKS[message.DESCRIPTOR.fields_by_name[name].cpp_type](path, value))


def _read_continuation(given: Mapping[str, Any], request: render_pb2.RenderChatRequest) -> None:
    """As in transformers: a field's name; true is the content."""
    value = given.get("continue_final_message", False)
    if value in CONTINUED_FIELDS:
        request.continue_final_message_field = value
    elif not isinstance(value, bool):
        raise out_of_range(
            "continue_final_message",
            json.dumps(value),
            "true, false, " + ", ".join(map(json.dumps, CONTINUED_FIELDS)),
        )
    request.continue_final_message = bool(value)


def _read_lists(
    given: Mapping[str, Any], sampling_params: types_pb2.SamplingParams, text_params: render_pb2.TextParams
) -> None:
    stop = given.get("stop", [])
    stop = [stop] if isinstance(stop, str) else _list("stop", stop)
    text_params.stop.extend(_text(f"stop[{i}]", each) for i, each in enumerate(stop))
    ids = _list("stop_token_ids", given.get("stop_token_ids", []))
    sampling_params.stop_token_ids.extend(_uint32(f"stop_token_ids[{i}]", each) for i, each in enumerate(ids))
    for token_id, bias in _object("logit_bias", given.get("logit_bias", {})).items():
        path = f"logit_bias[{token_id}]"
        if not _TOKEN_ID.fullmatch(token_id):
            raise out_of_range(path, bias, "token ids as keys")
        sampling_params.logit_bias[_uint32(path, int(token_id))] = _number(path, bias)


def _read_logprobs(given: Mapping[str, Any], sampling_params: types_pb2.SamplingParams) -> None:
    wanted = _switch("logprobs", given.get("logprobs", False))
    if wanted:
        sampling_params.logprobs = _uint32("top_logprobs", given.get("top_logprobs", 0))
    elif "top_logprobs" in given:
        raise out_of_range("top_logprobs", given["top_logprobs"], "only with logprobs true")


def _read_max_tokens(given: Mapping[str, Any], sampling_params: types_pb2.SamplingParams) -> None:
    """max_tokens is the old name of max_completion_tokens."""
    names = [name for name in ("max_tokens", "max_completion_tokens") if name in given]
    values = {_uint32(name, given[name]) for name in names}
    if len(values) > 1:
        raise out_of_range("max_tokens", given["max_tokens"], "the same as max_completion_tokens, or unset")
    for value in values:
        sampling_params.max_tokens = value


def _read_message(value: Any, path: str) -> render_pb2.ChatMessage:
    """Keys that the contract has no field for go to the template as they are."""
    body = dict(_object(path, value))
    message = render_pb2.ChatMessage(role=_text(f"{path}.role", body.pop("role", "")))
    if isinstance(body.get("content"), str):
        message.content = body.pop("content")
    elif body.get("content") is None:
        body.pop("content", None)
    elif not isinstance(body["content"], list):  # the parts of a text
        raise out_of_range(f"{path}.content", json.dumps(body["content"]), "a text or a list of parts")
    for name in ("reasoning_content", "tool_call_id", "name"):
        if (text := body.pop(name, None)) is not None:
            setattr(message, name, _text(f"{path}.{name}", text))
    calls = body.pop("tool_calls", None) or []
    for index, call in enumerate(_list(f"{path}.tool_calls", calls)):
        message.tool_calls.append(_read_tool_call(call, f"{path}.tool_calls[{index}]"))
    message.extra_json = _to_json(body) if body else ""
    return message


def _read_tool_call(value: Any, path: str) -> render_pb2.ToolCall:
    # The index is that of a delta: clients send back what they put together of those.
    body = _known(path, value, {"id", "type", "function", "index"})
    if body.get("type", "function") != "function":
        raise out_of_range(f"{path}.type", body["type"], '"function"')
    function = _known(f"{path}.function", body.get("function"), {"name", "arguments"})
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        arguments = _to_json(arguments)
    return render_pb2.ToolCall(
        id=_text(f"{path}.id", body.get("id") or ""),
        name=_text(f"{path}.function.name", function.get("name")),
        arguments_json=_text(f"{path}.function.arguments", arguments or ""),
    )


def _known(path: str, value: Any, keys: set[str]) -> dict[str, Any]:
    body = _object(path, value)
    if unknown := body.keys() - keys:
        raise out_of_range(f"{path}.{min(unknown)}", "set", f"only {', '.join(sorted(keys))}")
    return body


def _text(path: str, value: Any) -> str:
    if not isinstance(value, str):
        raise out_of_range(path, json.dumps(value), "a text")
    return value


def _switch(path: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise out_of_range(path, json.dumps(value), "true or false")
    return value


def _number(path: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise out_of_range(path, json.dumps(value), "a number")
    # The field is a 32-bit float, which would take a larger number for infinity.
    if not -_MAX_FLOAT <= value <= _MAX_FLOAT:
        raise out_of_range(path, value, f"a number from -{_MAX_FLOAT:.4g} to {_MAX_FLOAT:.4g}")
    return float(value)


def _integer(low: int, high: int) -> Callable[[str, Any], int]:
    def check(path: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise out_of_range(path, json.dumps(value), f"an integer from {low} to {high}")
        return value

    return check


def _list(path: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise out_of_range(path, json.dumps(value), "a list")
    return value


def _object(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise out_of_range(path, json.dumps(value), "an object")
    return value


_uint32 = _integer(0, 2**32 - 1)
_MAX_FLOAT = (2 - 2**-23) * 2.0**127
# One way to write each, so that none is set twice.
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")

_CHECKS: dict[int, Callable[[str, Any], Any]] = {
    FieldDescriptor.CPPTYPE_FLOAT: _number,
    FieldDescriptor.CPPTYPE_INT32: _integer(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: _uint32,
    FieldDescriptor.CPPTYPE_UINT64: _integer(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_BOOL: _switch,
    FieldDescriptor.CPPTYPE_STRING: _text,
}

# Keys that are fields of the same name.
_SAMPLING = frozenset(
    {"temperature", "top_p", "min_p", "top_k", "presence_penalty", "frequency_penalty", "repetition_penalty"}
    | {"min_tokens", "prompt_logprobs", "n", "seed", "ignore_eos"}
)
_REQUEST = frozenset({"add_generation_prompt", "request_id", "cache_salt", "priority"})
# Keys of the text's parameters, and their fields.
_TEXT = {
    "include_stop_str_in_output": "include_stop_in_output",
    "skip_special_tokens": "skip_special_tokens",
    "stop_in_reasoning": "stop_in_reasoning",
}
# Keys with values that change nothing, while others would ask for what cannot be had.
_ONLY: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True,),
    "response_format": ({"type": "text"},),
}
_READ_BELOW = frozenset(
    {"messages", "tools", "chat_template_kwargs", "stop", "stop_token_ids", "logit_bias"}
    | {"continue_final_message"}
    | {"logprobs", "top_logprobs", "max_tokens", "max_completion_tokens"}
)
# Who is asked, by whom, and how the answer comes: nothing of it is in a rendered request.
_WITHOUT_EFFECT = frozenset({"model", "user", "stream", "stream_options"})
