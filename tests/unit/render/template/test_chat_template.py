"""Templates: what they may rely on, sandboxed, bounded, and refused where they cannot be right."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from triptych.v1 import render_pb2

from services.render.template import environment
from services.render.template.chat_template import ChatTemplate
from services.render.tokenizer.tokenizer import Tokenizer
from shared.config import ConfigError
from shared.errors import Reason, ServiceError
from tests.support.render_models import (
    BOS,
    DEMO_MODEL,
    EOS,
    SPECIAL_TOKENS,
    TEMPLATES,
    TEMPLATES_WITH_MAPPINGS,
    TEMPLATES_WITHOUT_TOOLS,
    demo_tokenizer,
)
from tests.unit.render.template.conversations import (
    CONVERSATIONS,
    TOOLS,
    assistant,
    render_with,
    system,
    to_request,
    user,
)

STYLES_WITH_TOOLS = sorted(TEMPLATES.keys() - TEMPLATES_WITHOUT_TOOLS)


def render(source: str | Mapping[str, str], request: render_pb2.RenderChatRequest, **options: Any) -> str:
    """The text that our template makes of a request."""
    sources = {"default": source} if isinstance(source, str) else source
    return render_with(ChatTemplate(sources, SPECIAL_TOKENS, **options), request).text


def ask(source: str, content: str = "hi", **fields: Any) -> str:
    """Renders one user's message."""
    return render(source, to_request([user(content)], **fields))


def refusal(source: str, request: render_pb2.RenderChatRequest, **options: Any) -> ServiceError:
    """The error of a rendering."""
    with pytest.raises(ServiceError) as caught:
        render(source, request, **options)
    return caught.value


def test_the_demo_model_s_prompt_begins_with_exactly_one_beginning_of_sequence() -> None:
    tokenizer: Tokenizer = demo_tokenizer()
    ids = tokenizer.encode(ask(DEMO_TEMPLATE), add_special_tokens=False, field="messages")
    assert ids.count(0) == 1
    assert ids[0] == 0


DEMO_TEMPLATE = (DEMO_MODEL / "chat_template.jinja").read_text()
# What the embedded model was trained on, and its measured accuracy depends on.
TRAINED = {
    "one turn": BOS + "<｜User｜>Hi<｜Assistant｜>",
    "system": BOS + "Be brief.<｜User｜>Hi<｜Assistant｜>",
    "two systems": BOS + "Be brief.Be kind.<｜User｜>Hi<｜Assistant｜>",
    "many turns": (
        f"{BOS}<｜User｜>a<｜Assistant｜>b{EOS}<｜User｜>c<｜Assistant｜>d{EOS}<｜User｜>e<｜Assistant｜>"
    ),
    "whitespace": f"{BOS}<｜User｜>  a \n\n b\t<｜Assistant｜> c\n{EOS}<｜User｜>\n<｜Assistant｜>",
    "empty content": f"{BOS}<｜User｜><｜Assistant｜>{EOS}<｜User｜>x<｜Assistant｜>",
}


@pytest.mark.parametrize("conversation", TRAINED)
def test_without_tools_the_demo_model_s_prompt_is_as_in_its_training(conversation: str) -> None:
    assert render(DEMO_TEMPLATE, to_request(CONVERSATIONS[conversation])) == TRAINED[conversation]


def test_the_demo_model_s_template_shows_tools_calls_and_results() -> None:
    messages = [system("S"), *CONVERSATIONS["null content"]]
    assert render(DEMO_TEMPLATE, to_request(messages, TOOLS[1:])) == (
        f"{BOS}Tool: {json.dumps(TOOLS[1])}\nS<｜User｜>w<｜Assistant｜>\n"
        'Call: weather {"city": "Zürich", "days": 3}'
        f"{EOS}<｜User｜>Result: ok<｜User｜>?<｜Assistant｜>"
    )


def test_templates_tell_null_and_empty_content_apart() -> None:
    source = "{% for m in messages %}[{{ 'none' if m.content is none else m.content }}]{% endfor %}"
    assert render(source, to_request([assistant(None), assistant("")])) == "[none][]"


@pytest.mark.parametrize("arguments", ["", "null", "{}"])
@pytest.mark.parametrize("style", STYLES_WITH_TOOLS)
def test_missing_arguments_are_an_empty_object_in_every_style(style: str, arguments: str) -> None:
    call = render_pb2.ToolCall(id="f:0", name="f", arguments_json=arguments)
    request = to_request([user("x"), assistant("y")])
    request.messages[1].tool_calls.append(call)
    text = render(TEMPLATES[style], request)
    assert ("{}" in text) == (style not in TEMPLATES_WITH_MAPPINGS)
    assert "None" not in text
    assert "null" not in text


@pytest.mark.parametrize("style", STYLES_WITH_TOOLS)
def test_malformed_arguments_of_an_old_turn_are_shown_as_they_are(style: str) -> None:
    malformed = '{"city": "Zü'
    call = render_pb2.ToolCall(id="f:0", name="f", arguments_json=malformed)
    request = to_request([user("x"), assistant("y")])
    request.messages[1].tool_calls.append(call)
    assert malformed in render(TEMPLATES[style], request)


def test_tojson_escapes_neither_html_nor_unicode_and_keeps_order() -> None:
    source = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    assert ask(source, tools=TOOLS[:1]) == json.dumps(TOOLS[0], ensure_ascii=False)


@pytest.mark.parametrize("indent", [2, 4, "\t"])
def test_indented_json_is_python_s_and_bounded(indent: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"{{{{ tools | tojson(indent={indent!r}) }}}}"
    tool = {"b": [1, {"ü": "<&>"}, []], "a": None}
    request = to_request([user("x")])
    request.tools_json.append(json.dumps(tool))
    assert render(source, request) == json.dumps([tool], ensure_ascii=False, indent=indent)
    monkeypatch.setattr(environment, "MAX_CHARS", 20)
    assert "longer than 20 characters" in refusal(source, request).message


def test_an_error_names_texts_as_the_template_knows_them() -> None:
    tokens = demo_tokenizer().control_tokens
    source = "{{ '<｜User｜>' + messages[0].content + messages[0].number }}"
    message = render_pb2.ChatMessage(role="user", content="x", extra_json='{"number": {}}')
    error = refusal(source, render_pb2.RenderChatRequest(messages=[message]), control_tokens=tokens)
    assert "'str' and 'dict'" in error.message


def test_tools_are_refused_by_a_template_that_ignores_them() -> None:
    error = refusal("{{ messages[0].content }}", to_request([user("x")], TOOLS))
    assert (error.reason, error.field) == (Reason.TOOLS_UNSUPPORTED, "tools_json")


def test_with_tools_the_template_for_tools_is_preferred() -> None:
    sources = {"default": "plain", "tool_use": "tools: {{ tools | map(attribute='function.name') | join }}"}
    assert render(sources, to_request([user("x")], TOOLS)) == "tools: weathertime"
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


@pytest.mark.parametrize("content", [None, [], [{"type": "image"}], ["text"], [{"text": None}]])
def test_a_message_without_text_cannot_be_continued(content: object) -> None:
    message = render_pb2.ChatMessage(role="assistant", extra_json=json.dumps({"content": content}))
    request = render_pb2.RenderChatRequest(messages=[message], continue_final_message=True)
    reads_parts = "{% for part in messages[0].content %}{{ part.text }}{% endfor %}"
    assert refusal(reads_parts, request).field == "continue_final_message"


_PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, "c"]


def of_parts(parts: object) -> render_pb2.RenderChatRequest:
    message = render_pb2.ChatMessage(role="user", extra_json=json.dumps({"content": parts}))
    return render_pb2.RenderChatRequest(messages=[message])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content }}",
        "{{ messages[0]['content'] | trim }}",
        "{{ '' + messages[0].content }}",
        "{{ messages[0].content if messages[0].content is string else '' }}",
        "{{ messages[0].content | string }}",
    ],
)
def test_a_template_that_takes_texts_only_gets_the_texts_of_a_list_of_parts(source: str) -> None:
    assert render(source, of_parts(_PARTS)) == "a\nb\nc"
    assert render(source, of_parts([])) == ""


@pytest.mark.parametrize("content", [_PARTS[:2], [*_PARTS[:2], {"type": "image"}]])
def test_a_template_that_goes_through_the_parts_gets_them(content: list[object]) -> None:
    source = "{% for part in messages[0].content %}[{{ part.text or part.type }}]{% endfor %}"
    assert render(source, of_parts(content)) == "".join(["[a]", "[b]", "[image]"][: len(content)])
    or_text = (
        "{% if messages[0].content is string %}{{ messages[0].content }}{% else %}" + source + "{% endif %}"
    )
    assert render(or_text, of_parts(_PARTS[:2])) == "[a][b]"
    assert render(or_text, to_request([user("x")])) == "x"


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "u"}}, {"type": "text"}, 7, None, {}]
)
def test_a_part_that_is_no_text_is_refused_where_the_template_takes_texts_only(part: object) -> None:
    error = refusal("{{ messages[0].content }}", of_parts([*_PARTS, part]))
    assert error.reason is Reason.PARAMETER_OUT_OF_RANGE
    assert error.field == "messages[0].extra_json.content[3]"


def test_an_error_of_the_template_names_its_line() -> None:
    source = "\n{% macro shown(m) %}\n{{ m.content + 1 }}\n{% endmacro %}\n{{ shown(messages[0]) }}"
    error = refusal(source, to_request([user("x")]))
    assert 'line 3: can only concatenate str (not "int") to str' in error.message
    error = refusal("\n{{ raise_exception('no tools, please') }}", to_request([user("x")]))
    assert error.message.endswith("conversation: no tools, please")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_found_under_each_name_that_templates_read(name: str) -> None:
    source = (
        "{% set m = messages[0] %}{{ m.reasoning_content }} {{ m.thinking }} {{ m.reasoning is defined }}"
    )
    message = render_pb2.ChatMessage(role="assistant", content="x")
    if name == "reasoning_content":
        message.reasoning_content = "because"
    else:
        message.extra_json = json.dumps({name: "because"})
    request = render_pb2.RenderChatRequest(messages=[message])
    assert render(source, request) == f"because because {name == 'reasoning'}"
    assert render(source, to_request([assistant("x")])) == "  False"


def test_a_template_that_writes_the_message_twice_is_cut_after_the_last_and_shows_no_mark() -> None:
    request = to_request([assistant("x")], continue_final_message=True)
    twice = ChatTemplate({"default": "{{ messages[0].content }}(again: {{ messages[0].content }})"}, {})
    assert render_with(twice, request).text == "x(again: x"
    source = "{{ messages[0].content | trim }} = {{ messages[0].content | trim }}."
    assert render_with(ChatTemplate({"default": source}, {}), request).text == "x = x"


def test_a_message_that_the_template_leaves_out_cannot_be_continued() -> None:
    source = "{% for m in messages if m.content[:1] != 'a' %}{{ m.content }}{% endfor %}"
    request = to_request([user("q"), assistant("a")], continue_final_message=True)
    assert refusal(source, request).reason is Reason.TEMPLATE_FAILED
