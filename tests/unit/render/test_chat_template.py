"""Templates: equal to transformers' rendering, sandboxed, bounded."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template
from triptych.v1 import render_pb2

from services.render.chat_template import ChatTemplate
from services.render.conversation import read_conversation
from services.render.tokenizer import Tokenizer
from shared.config import ConfigError
from shared.errors import Reason, ServiceError
from tests.support.render_models import (
    DEEPSEEK_TOKENIZER,
    DEMO_MODEL,
    TEMPLATES,
    deepseek_tokenizer_,
    demo_tokenizer,
)

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SPECIAL_TOKENS = {"bos_token": BOS, "eos_token": EOS}

TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"z": 1, "a": {"b": 1.0, "größe": "<&'>"}}},
    },
    {"type": "function", "function": {"name": "time", "strict": None}},
]
CALLS = [
    {"id": "weather:0", "name": "weather", "arguments": {"city": "Zürich", "days": 3}},
    {"id": "time:1", "name": "time", "arguments": {}},
]


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def tool(content: str, tool_call_id: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": tool_call_id}


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [user("Hi")],
    "system": [{"role": "system", "content": "Be brief."}, user("Hi")],
    "many turns": [user("a"), assistant("b"), user("c"), assistant("d"), user("e")],
    "whitespace": [user("  a \n\n b\t"), assistant(" c\n"), user("\n")],
    "empty content": [user(""), assistant(""), user("x")],
    "unicode": [user("Grüße 你好 👩‍👩‍👧"), assistant("e\u0301 العربية"), user("<tag> & 'quote' \\n")],
    "long": [user("word " * 3000)],
    "reasoning": [user("q"), assistant("a", reasoning_content=" because \n"), user("r")],
    "calls": [user("w?"), assistant("Looking.", tool_calls=CALLS), tool("rain", "a"), tool("5", "b")],
    "calls without text": [user("w"), assistant(None, tool_calls=CALLS[:1]), tool("ok", "x"), user("?")],
}  # fmt: skip


def to_request(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **fields: Any
) -> render_pb2.RenderChatRequest:
    """The same conversation as a message of ours."""
    converted = []
    for message in messages:
        calls = [
            render_pb2.ToolCall(id=call["id"], name=call["name"], arguments_json=as_text(call["arguments"]))
            for call in message.get("tool_calls", ())
        ]
        converted.append(render_pb2.ChatMessage(**{**message, "tool_calls": calls}))
    tools_json = [as_text(each) for each in tools or ()]
    return render_pb2.RenderChatRequest(messages=converted, tools_json=tools_json, **fields)


def as_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def to_openai(messages: list[dict[str, Any]], arguments_as_text: bool) -> list[dict[str, Any]]:
    """The same conversation as transformers reads it."""
    converted = []
    for message in messages:
        calls = []
        for call in message.get("tool_calls", ()):
            arguments = as_text(call["arguments"]) if arguments_as_text else call["arguments"]
            function = {"name": call["name"], "arguments": arguments}
            calls.append({"id": call["id"], "type": "function", "function": function})
        converted.append({**message, "tool_calls": calls} if calls else message)
    return converted


def render(source: str | Mapping[str, str], request: render_pb2.RenderChatRequest, **options: Any) -> str:
    """The text that our template makes of a request."""
    sources = {"default": source} if isinstance(source, str) else source
    template = ChatTemplate(sources, SPECIAL_TOKENS, **options)
    return template.render(read_conversation(request, template.reserved_names))


def ask(source: str, content: str = "hi", **fields: Any) -> str:
    """Renders one user's message."""
    return render(source, to_request([user(content)], **fields))


def refusal(source: str, request: render_pb2.RenderChatRequest, **options: Any) -> ServiceError:
    """The error of a rendering."""
    with pytest.raises(ServiceError) as caught:
        render(source, request, **options)
    return caught.value


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("style", TEMPLATES)
@pytest.mark.parametrize("with_tools", [False, True], ids=["no tools", "tools"])
@pytest.mark.parametrize("add_generation_prompt", [False, True], ids=["closed", "open"])
def test_the_text_equals_transformers(
    style: str, conversation: str, with_tools: bool, add_generation_prompt: bool
) -> None:
    messages = CONVERSATIONS[conversation]
    tools = TOOLS if with_tools else None
    ours = render(TEMPLATES[style], to_request(messages, tools, add_generation_prompt=add_generation_prompt))
    [theirs], _ = render_jinja_template(
        [to_openai(messages, arguments_as_text=style != "glm")],
        tools=tools,
        chat_template=TEMPLATES[style],
        add_generation_prompt=add_generation_prompt,
        **SPECIAL_TOKENS,
    )
    assert ours == theirs


# transformers drops a null content before the template can ask for it; the text above is compared with it.
@pytest.mark.parametrize("conversation", [name for name in CONVERSATIONS if name != "calls without text"])
@pytest.mark.parametrize("style", TEMPLATES)
@pytest.mark.parametrize(
    ("folder", "tokenizer"),
    [(DEMO_MODEL, demo_tokenizer), (DEEPSEEK_TOKENIZER, deepseek_tokenizer_)],
    ids=["demo", "deepseek"],
)
def test_the_ids_equal_transformers_apply_chat_template(
    folder: Any, tokenizer: Any, style: str, conversation: str
) -> None:
    messages = CONVERSATIONS[conversation]
    text = render(TEMPLATES[style], to_request(messages, TOOLS))
    ids = tokenizer().encode(text, add_special_tokens=False, field="messages")
    theirs = _transformers_tokenizer(str(folder / "tokenizer.json")).apply_chat_template(
        to_openai(messages, arguments_as_text=style != "glm"),
        tools=TOOLS,
        chat_template=TEMPLATES[style],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert ids == theirs


_tokenizers: dict[str, PreTrainedTokenizerFast] = {}


def _transformers_tokenizer(file: str) -> PreTrainedTokenizerFast:
    if file not in _tokenizers:
        _tokenizers[file] = PreTrainedTokenizerFast(tokenizer_file=file, bos_token=BOS, eos_token=EOS)
    return _tokenizers[file]


def test_the_demo_model_s_prompt_begins_with_exactly_one_beginning_of_sequence() -> None:
    tokenizer: Tokenizer = demo_tokenizer()
    source = (DEMO_MODEL / "chat_template.jinja").read_text()
    ids = tokenizer.encode(ask(source), add_special_tokens=False, field="messages")
    assert ids.count(0) == 1
    assert ids[0] == 0


def test_templates_tell_null_and_empty_content_apart() -> None:
    source = "{% for m in messages %}[{{ 'none' if m.content is none else m.content }}]{% endfor %}"
    assert render(source, to_request([assistant(None), assistant("")])) == "[none][]"


@pytest.mark.parametrize("arguments", ["", "null", "{}"])
@pytest.mark.parametrize("style", TEMPLATES)
def test_missing_arguments_are_an_empty_object_in_every_style(style: str, arguments: str) -> None:
    call = render_pb2.ToolCall(id="f:0", name="f", arguments_json=arguments)
    request = to_request([user("x"), assistant("y")])
    request.messages[1].tool_calls.append(call)
    text = render(TEMPLATES[style], request)
    assert ("{}" in text) == (style != "glm")
    assert "None" not in text
    assert "null" not in text


@pytest.mark.parametrize("style", TEMPLATES)
def test_malformed_arguments_of_an_old_turn_are_shown_as_they_are(style: str) -> None:
    malformed = '{"city": "Zü'
    call = render_pb2.ToolCall(id="f:0", name="f", arguments_json=malformed)
    request = to_request([user("x"), assistant("y")])
    request.messages[1].tool_calls.append(call)
    assert malformed in render(TEMPLATES[style], request)


def test_tojson_escapes_neither_html_nor_unicode_and_keeps_order() -> None:
    source = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    assert ask(source, tools=TOOLS[:1]) == json.dumps(TOOLS[0], ensure_ascii=False)


def test_tools_are_refused_by_a_template_that_ignores_them() -> None:
    error = refusal("{{ messages[0].content }}", to_request([user("x")], TOOLS))
    assert (error.reason, error.field) == (Reason.TOOLS_UNSUPPORTED, "tools_json")


def test_with_tools_the_template_for_tools_is_preferred() -> None:
    sources = {"default": "plain", "tool_use": "{{ tools | length }} tools"}
    assert render(sources, to_request([user("x")], TOOLS)) == "2 tools"
    assert render(sources, to_request([user("x")])) == "plain"


def test_a_model_without_a_template_says_so() -> None:
    with pytest.raises(ServiceError) as caught:
        render({}, to_request([user("x")]))
    assert caught.value.reason is Reason.NO_CHAT_TEMPLATE


def test_a_template_can_refuse_the_conversation() -> None:
    error = refusal("{{ raise_exception('roles must alternate') }}", to_request([user("x")]))
    assert (error.reason, error.field) == (Reason.TEMPLATE_FAILED, "messages")
    assert "roles must alternate" in error.message


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{% set _ = messages.append(1) %}",
        "{{ strftime_now.__globals__.os }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ (messages | first).clear() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ 1 / 0 }}",
        "{{ messages['x'].y }}",
        "{{ 'a' + 1 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_escapes_and_faults_end_as_an_error_of_the_template(source: str) -> None:
    assert refusal(source, to_request([user("x")])).reason is Reason.TEMPLATE_FAILED


@pytest.mark.parametrize(
    "source",
    [
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    ],
)
def test_a_template_that_runs_for_too_long_is_ended(source: str) -> None:
    error = refusal(source, to_request([user("x")]), max_seconds=0.05)
    assert error.reason is Reason.TEMPLATE_FAILED
    assert "too long" in error.message


def test_output_that_grows_too_large_is_ended() -> None:
    source = "{% for _ in range(99999) %}{{ messages[0].content }}{% endfor %}"
    error = refusal(source, to_request([user("x" * 1000)]), max_chars=10_000)
    assert error.reason is Reason.TEMPLATE_FAILED
    assert "10000 characters" in error.message


def test_a_syntax_error_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="line 2"):
        ChatTemplate({"default": "a\n{% if %}"}, {})


def test_the_renderer_s_own_variables_are_reserved() -> None:
    reserved = ChatTemplate({}, {}).reserved_names
    assert {"messages", "tools", "add_generation_prompt", "chat_template", "bos_token", "range"} <= reserved
    assert "enable_thinking" not in reserved


def test_the_clock_can_be_set() -> None:
    noon = datetime(2024, 5, 1, 12)
    assert (
        render("{{ strftime_now('%d %B %Y') }}", to_request([user("x")]), now=lambda: noon) == "01 May 2024"
    )


@pytest.mark.parametrize("style", TEMPLATES)
@pytest.mark.parametrize("content", ["The answer is", "ends in a space ", " \n spaced \n"])
def test_a_continued_message_is_left_open_as_transformers_leaves_it(style: str, content: str) -> None:
    messages = [user("q"), assistant(content)]
    ours = render(TEMPLATES[style], to_request(messages, continue_final_message=True))
    [theirs], _ = render_jinja_template(
        [messages], chat_template=TEMPLATES[style], continue_final_message=True, **SPECIAL_TOKENS
    )
    assert ours == theirs
    assert ours.rstrip().endswith(content.strip())


def test_a_message_without_text_cannot_be_continued() -> None:
    error = refusal("{{ messages }}", to_request([assistant(None)], continue_final_message=True))
    assert error.field == "continue_final_message"


def test_a_message_that_the_template_leaves_out_cannot_be_continued() -> None:
    source = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    request = to_request([user("q"), assistant("a")], continue_final_message=True)
    assert refusal(source, request).reason is Reason.TEMPLATE_FAILED
