"""From RenderChatRequest to the plain values that a chat template reads.

Free-form parts come as JSON text and reach the template as they were sent: same keys, same order, integers as
integers, nothing added. Errors name the field by its path.
"""

import json
import re
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from triptych.v1 import render_pb2

from services.render.request.json_text import LONE_SURROGATE, has_lone_surrogate, read_json
from shared.errors import Reason, ServiceError, out_of_range

CONTINUED_FIELDS = ("content", "reasoning_content")


# More than any model's context holds. Reading and writing JSON keeps the interpreter's lock, in which nothing
# else runs: 30 to 60 ms for so much.
_MAX_JSON_CHARS = 1024 * 1024

# Only a text with such an escape can hold a lone surrogate.
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Conversation:
    """What a chat template is applied to."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    # Further template variables.
    variables: dict[str, Any]
    add_generation_prompt: bool
    # The field of the last message that stays open, to be continued; empty: none does.
    continued_field: str = ""


def read_conversation(
    request: render_pb2.RenderChatRequest, reserved_names: Set[str], prefix: str = ""
) -> Conversation:
    """Checks and converts. reserved_names: variables that a caller may not set. prefix: of field paths.

    Raises ServiceError: PARAMETER_OUT_OF_RANGE, INVALID_JSON, INVALID_TEXT.
    """
    if not request.messages:
        raise out_of_range(f"{prefix}messages", "empty", "at least one message")
    if request.continue_final_message and request.add_generation_prompt:
        raise out_of_range(f"{prefix}add_generation_prompt", True, "false with continue_final_message")
    continued_field = _read_continued_field(request, prefix)
    wants_prompt = request.add_generation_prompt if request.HasField("add_generation_prompt") else True
    return Conversation(
        messages=[
            _read_message(message, f"{prefix}messages[{index}]")
            for index, message in enumerate(request.messages)
        ],
        tools=_read_tools(request.tools_json, f"{prefix}tools_json"),
        variables=_read_variables(
            request.chat_template_kwargs_json, reserved_names, f"{prefix}chat_template_kwargs_json"
        ),
        add_generation_prompt=wants_prompt and not continued_field,
        continued_field=continued_field,
    )


def _read_continued_field(request: render_pb2.RenderChatRequest, prefix: str) -> str:
    name = request.continue_final_message_field
    field = f"{prefix}continue_final_message_field"
    if name not in ("", *CONTINUED_FIELDS):
        raise out_of_range(field, name, " or ".join(CONTINUED_FIELDS))
    if name and not request.continue_final_message:
        raise out_of_range(field, name, "unset without continue_final_message")
    return (name or "content") if request.continue_final_message else ""


def _read_message(message: render_pb2.ChatMessage, field: str) -> dict[str, Any]:
    """Unset content is none, as templates ask (`content is none`); other unset fields are absent."""
    if not message.role:
        raise out_of_range(
            f"{field}.role", "empty", "system, user, assistant, tool or what the template knows"
        )
    typed: dict[str, Any] = {"role": message.role}
    if message.HasField("content"):
        typed["content"] = message.content
    if message.HasField("reasoning_content"):
        typed["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        typed["tool_calls"] = [
            _read_tool_call(call, f"{field}.tool_calls[{index}]")
            for index, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id:
        typed["tool_call_id"] = message.tool_call_id
    if message.name:
        typed["name"] = message.name
    extra = _read_object(message.extra_json, f"{field}.extra_json")
    if twice := typed.keys() & extra.keys():
        raise ServiceError(
            Reason.INVALID_JSON,
            f"{field}.extra_json sets {min(twice)!r}, which the message itself sets",
            field=f"{field}.extra_json",
        )
    content = extra.get("content")
    if not isinstance(content, str | list | None):
        shown = json.dumps(content, ensure_ascii=False)
        raise out_of_range(f"{field}.extra_json.content", shown, "a text, null or a list of parts")
    return {"role": message.role, "content": None, **typed, **extra}


def _read_tool_call(call: render_pb2.ToolCall, field: str) -> dict[str, Any]:
    if not call.name:
        raise out_of_range(f"{field}.name", "empty", "the function's name")
    arguments = call.arguments_json
    _check_size(len(arguments), f"{field}.arguments_json")
    if arguments.strip() in ("", "null"):
        arguments = "{}"
    if _SURROGATE_ESCAPE.search(arguments):
        with suppress(ValueError):  # what is no JSON is passed on as it is
            _refuse_surrogates(arguments, read_json(arguments), f"{field}.arguments_json")
    values: dict[str, Any] = {"id": call.id} if call.id else {}
    return {**values, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _read_tools(tools_json: Sequence[str], field: str) -> list[dict[str, Any]]:
    _check_size(sum(map(len, tools_json)), field)
    tools = [_read_object(text, f"{field}[{index}]") for index, text in enumerate(tools_json)]
    for index, tool in enumerate(tools):
        if not tool:
            raise out_of_range(f"{field}[{index}]", "empty", "a tool definition, as a JSON object")
    return tools


def _read_variables(text: str, reserved_names: Set[str], field: str) -> dict[str, Any]:
    variables = _read_object(text, field)
    if refused := variables.keys() & reserved_names:
        raise out_of_range(
            f"{field}.{min(refused)}", "set", "only names that the renderer does not set itself"
        )
    return variables


def _read_object(text: str, field: str) -> dict[str, Any]:
    """A JSON object; the empty text is the empty one."""
    if not text:
        return {}
    _check_size(len(text), field)
    try:
        value = read_json(text)
    except ValueError as error:
        raise ServiceError(Reason.INVALID_JSON, f"{field} is not valid JSON: {error}", field=field) from None
    if not isinstance(value, dict):
        raise ServiceError(Reason.INVALID_JSON, f"{field} is not a JSON object", field=field)
    _refuse_surrogates(text, value, field)
    return value


def _check_size(num_chars: int, field: str) -> None:
    if num_chars > _MAX_JSON_CHARS:
        raise out_of_range(field, f"{num_chars} characters of JSON", f"at most {_MAX_JSON_CHARS}")


def _refuse_surrogates(text: str, value: Any, field: str) -> None:
    if _SURROGATE_ESCAPE.search(text) and has_lone_surrogate(value):
        raise ServiceError(Reason.INVALID_TEXT, f"{field} {LONE_SURROGATE}", field=field)
