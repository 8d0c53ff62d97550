"""Conversations that the tests of templates share, as our messages and as transformers reads them."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template
from triptych.v1 import render_pb2

from services.render.request.conversation import read_conversation
from services.render.template.chat_template import ChatTemplate
from services.render.tokenizer.control_tokens import ControlTokens, Prompt
from tests.support.render_models import (
    BOS,
    EOS,
    SPECIAL_TOKENS,
    TEMPLATES,
    TEMPLATES_WITH_MAPPINGS,
    TEMPLATES_WITHOUT_TOOLS,
)

Message = dict[str, Any]

TOOLS: list[Message] = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"z": 1, "a": {"b": 1.0, "größe": "<&'>"}}},
    },
    {"type": "function", "function": {"name": "time", "strict": None, "parameters": {}}},
]
CALLS: list[Message] = [
    {"id": "weather:0", "name": "weather", "arguments": {"city": "Zürich", "days": 3}},
    {"id": "time:1", "name": "time", "arguments": {}},
]


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def user(content: str, **more: Any) -> Message:
    return {"role": "user", "content": content, **more}


def assistant(content: str | None, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def tool(content: str, tool_call_id: str) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": tool_call_id}


CONVERSATIONS: dict[str, list[Message]] = {
    "one turn": [user("Hi")],
    "system": [system("Be brief."), user("Hi")],
    "two systems": [system("Be brief."), system("Be kind."), user("Hi")],
    "many turns": [user("a"), assistant("b"), user("c"), assistant("d"), user("e")],
    "whitespace": [user("  a \n\n b\t"), assistant(" c\n"), user("\n")],
    "empty content": [user(""), assistant(""), user("x")],
    "unicode": [user("Grüße 你好 👩‍👩‍👧"), assistant("e\u0301 العربية"), user("<tag> & 'quote' \\n")],
    "names": [user("I am Ann", name="ann"), assistant("Hi Ann", name="bot"), user("ok", name="ann")],
    "long": [user("word " * 3000)],
    "code": [user("```python\ndef f(x):\n    return x < 3\n``` </p>"), assistant("<b>ok</b>"), user(">")],
    "reasoning": [user("q"), assistant("a", reasoning_content=" because \n"), user("r")],
    "reasoning in content": [user("q"), assistant("<think>\nso\n</think>\n\na"), user("r")],
    "one call": [user("w?"), assistant("Looking.", tool_calls=CALLS[:1]), tool("rain", "weather:0")],
    "parallel calls": [user("w?"), assistant("", tool_calls=CALLS), tool("rain", "a"), tool("5", "b")],
    "null content": [user("w"), assistant(None, tool_calls=CALLS[:1]), tool("ok", "x"), user("?")],
    "calls, then turns": [
        user("w?"),
        assistant("Hm.", tool_calls=CALLS, reasoning_content="look it up"),
        tool('{"t": 1}', "a"),
        tool("", "b"),
        assistant("Rain at 5."),
        user("thanks"),
        assistant("welcome", reasoning_content="polite"),
    ],
}  # fmt: skip


def as_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def to_request(
    messages: Sequence[Message], tools: Sequence[Message] | None = None, **fields: Any
) -> render_pb2.RenderChatRequest:
    """A conversation as a message of ours."""
    converted = []
    for message in messages:
        calls = [
            render_pb2.ToolCall(id=call["id"], name=call["name"], arguments_json=as_text(call["arguments"]))
            for call in message.get("tool_calls", ())
        ]
        converted.append(render_pb2.ChatMessage(**{**message, "tool_calls": calls}))
    tools_json = [as_text(each) for each in tools or ()]
    return render_pb2.RenderChatRequest(messages=converted, tools_json=tools_json, **fields)


def to_openai(messages: Sequence[Message], style: str) -> list[Message]:
    """A conversation as transformers reads it."""
    converted = []
    for message in messages:
        calls = []
        for call in message.get("tool_calls", ()):
            is_mapping = style in TEMPLATES_WITH_MAPPINGS
            arguments = call["arguments"] if is_mapping else as_text(call["arguments"])
            function = {"name": call["name"], "arguments": arguments}
            calls.append({"id": call["id"], "type": "function", "function": function})
        converted.append({**message, "tool_calls": calls} if calls else message)
    return converted


def tools_for(style: str) -> list[Message] | None:
    """Tools, if the template knows them."""
    return None if style in TEMPLATES_WITHOUT_TOOLS else TOOLS


def conversation_for(style: str, messages: Sequence[Message]) -> list[Message]:
    """A conversation, without calls and their results if the template knows no tools."""
    if style not in TEMPLATES_WITHOUT_TOOLS:
        return list(messages)
    kept = [message for message in messages if message["role"] != "tool"]
    return [{key: value for key, value in each.items() if key != "tool_calls"} for each in kept] or [
        user("x")
    ]


@cache
def template_of(style: str, control_tokens: ControlTokens | None = None) -> ChatTemplate:
    """A template, compiled. control_tokens: in content they are text."""
    return ChatTemplate({"default": TEMPLATES[style]}, SPECIAL_TOKENS, control_tokens=control_tokens)


def render_with(template: ChatTemplate, request: render_pb2.RenderChatRequest) -> Prompt:
    """What the template makes of a request."""
    return template.render(read_conversation(request, template.reserved_names))


def transformers_text(style: str, messages: Sequence[Message], **options: Any) -> str:
    """What transformers' own rendering makes of it."""
    rendered: Any = render_jinja_template(
        [to_openai(messages, style)], chat_template=TEMPLATES[style], **SPECIAL_TOKENS, **options
    )
    return str(rendered[0][0])


@cache
def transformers_tokenizer(file: str) -> PreTrainedTokenizerFast:
    """A file as transformers loads it."""
    return PreTrainedTokenizerFast(tokenizer_file=file, bos_token=BOS, eos_token=EOS)
