"""Messages as a template takes them, by its capabilities: what it would drop in silence is refused here."""

import json
from typing import Any

from services.render.request.conversation import Conversation
from services.render.request.json_text import read_json
from services.render.template.capabilities import (
    DEVELOPER,
    SYSTEM,
    Arguments,
    Capabilities,
    Message,
    NullContent,
)
from services.render.time_limit import check_clock
from shared.errors import Reason, ServiceError, out_of_range

# The names that templates read reasoning by, the one of the contract first.
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


def messages_for(capabilities: Capabilities, conversation: Conversation, prefix: str = "") -> list[Message]:
    """prefix: of field paths.

    Raises ServiceError: PARAMETER_OUT_OF_RANGE for a role that is left out, or a part that is no text;
    TOOLS_UNSUPPORTED.
    """
    if conversation.tools and capabilities.tools.is_left_out:
        raise _unsupported("tools", f"{prefix}tools_json")
    return [
        _message_for(capabilities, message, f"{prefix}messages[{index}]")
        for index, message in enumerate(conversation.messages)
    ]


def _message_for(capabilities: Capabilities, message: Message, field: str) -> Message:
    check_clock()
    role = _role_for(capabilities, message["role"], field)
    support = capabilities.role(role)
    null_content = support.null_content
    made = {**message, "role": role}
    if calls := message.get("tool_calls"):
        if capabilities.calls.is_left_out:
            raise _unsupported("tool calls", f"{field}.tool_calls")
        made["tool_calls"] = _calls_for(capabilities.calls.arguments, calls)
        null_content = capabilities.calls.null_content
    content = made["content"]
    if content is None and null_content is NullContent.ABSENT:
        del made["content"]
    elif content is None and null_content is NullContent.EMPTY:
        made["content"] = ""
    elif isinstance(content, list) and not support.takes_parts:
        made["content"] = _join_parts(content, f"{field}.extra_json.content")
    return _with_reasoning(made)


def _role_for(capabilities: Capabilities, role: str, field: str) -> str:
    """A developer's message is the system's to a template that knows no developer."""
    if role == DEVELOPER and not capabilities.role(role).is_shown and capabilities.role(SYSTEM).is_shown:
        return SYSTEM
    if capabilities.role(role).is_left_out:
        allowed = ", ".join(capabilities.shown_roles) or "no role"
        raise out_of_range(f"{field}.role", role, f"{allowed}: the chat template leaves out others")
    return role


def _calls_for(form: Arguments, calls: Any) -> Any:
    """With arguments in the template's form. What is not as our own calls are (extra_json) stays as it is."""
    if form is Arguments.TEXT or not isinstance(calls, list):
        return calls
    made = []
    for call in calls:
        check_clock()  # a message may hold tens of thousands
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(text := function.get("arguments"), str):
            call = {**call, "function": {**function, "arguments": _arguments_for(form, text)}}
        made.append(call)
    return made


def _arguments_for(form: Arguments, text: str) -> Any:
    """The value. What the template cannot take, or is no JSON, is the object {"arguments": text}."""
    try:
        value = read_json(text)
    except ValueError:
        return {"arguments": text}
    return value if isinstance(value, dict) or form is Arguments.VALUE else {"arguments": text}


def _join_parts(parts: list[Any], field: str) -> str:
    """The texts, a line each."""
    texts = []
    for index, part in enumerate(parts):
        text = part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else part
        if not isinstance(text, str):
            allowed = '{"type": "text", "text": "…"}: the chat template takes only text from this role'
            raise out_of_range(f"{field}[{index}]", json.dumps(part, ensure_ascii=False), allowed)
        texts.append(text)
    return "\n".join(texts)


def _with_reasoning(message: Message) -> Message:
    """Under each name that templates read it by, as with transformers."""
    reasoning = next((message[name] for name in REASONING_NAMES if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _unsupported(what: str, field: str) -> ServiceError:
    return ServiceError(Reason.TOOLS_UNSUPPORTED, f"the model's chat template ignores {what}", field=field)
