"""What templates can do is found out by rendering, and messages reach each template in its own form."""

import itertools
import json
from typing import Any

import pytest
from triptych.v1 import render_pb2

from services.render import time_limit
from services.render.template.capabilities import Arguments, Capabilities, NullContent
from services.render.template.chat_template import ChatTemplate
from shared.errors import Reason, ServiceError
from tests.support.render_models import (
    SPECIAL_TOKENS,
    TEMPLATES,
    TEMPLATES_WITH_MAPPINGS,
    TEMPLATES_WITHOUT_TOOLS,
    deepseek_tokenizer_,
)
from tests.unit.render.template.conversations import (
    TOOLS,
    assistant,
    render_with,
    system,
    template_of,
    to_request,
    tool,
    transformers_text,
    user,
)

Message = render_pb2.ChatMessage
STYLES_WITH_TOOLS = sorted(TEMPLATES.keys() - TEMPLATES_WITHOUT_TOOLS)
PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]

# Prints each message as `role: content;`, a call as `name arguments;`.
CALLS_AS = {
    "text": "{{ c.function.arguments }}",
    "concatenated": "{{ '' + c.function.arguments }}",
    "either": "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}",
    "tojson": "{{ c.function.arguments | tojson }}",
    "whole call": "{{ c.function | tojson }}",
    "items": "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }},{% endfor %}",
    "items filter": "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }},{% endfor %}",
    "keys": "{% for k in c.function.arguments %}{{ k }}={{ c.function.arguments[k] }},{% endfor %}",
}
OBJECTS_ONLY = {"items", "items filter", "keys"}


def plain(content: str = "{{ m.content }}", arguments: str = CALLS_AS["text"]) -> str:
    """The source of a template."""
    calls = "{% for c in m.tool_calls or [] %}" + arguments + ";{% endfor %}"
    return "{% for m in messages %}{{ m.role }}: " + content + ";" + calls + "{% endfor %}{{ tools }}"


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, SPECIAL_TOKENS)


def capabilities(source: str) -> Capabilities:
    return template(source).capabilities["default"]


def text_of(source: str, *messages: render_pb2.ChatMessage, **fields: Any) -> str:
    return render_with(template(source), render_pb2.RenderChatRequest(messages=messages, **fields)).text


def refusal(source: str, *messages: render_pb2.ChatMessage, **fields: Any) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        text_of(source, *messages, **fields)
    return caught.value


def call_of(arguments: str, content: str | None = "c") -> render_pb2.ChatMessage:
    call = render_pb2.ToolCall(id="f:0", name="f", arguments_json=arguments)
    return Message(role="assistant", content=content, tool_calls=[call])


@pytest.mark.parametrize("style", STYLES_WITH_TOOLS)
def test_each_style_takes_a_call_s_arguments_as_its_family_does(style: str) -> None:
    form = template_of(style).capabilities["default"].calls.arguments
    assert form is (Arguments.OBJECT if style in TEMPLATES_WITH_MAPPINGS else Arguments.TEXT)


@pytest.mark.parametrize("arguments", ["text", "concatenated", "either"])
@pytest.mark.parametrize("text", ['{"a":  1.0}', "[1]", "7", "{}", '{"city": "Zü'])
def test_arguments_are_the_text_itself_wherever_it_is_shown_as_it_is(arguments: str, text: str) -> None:
    source = plain(arguments=CALLS_AS[arguments])
    assert text_of(source, call_of(text)) == f"assistant: c;{text};None"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("tojson", '{"a": 1.0, "b": "ü"}'),
        ("whole call", '{"name": "f", "arguments": {"a": 1.0, "b": "ü"}}'),
        ("items", "a=1.0,b=ü,"),
        ("items filter", "a=1.0,b=ü,"),
        ("keys", "a=1.0,b=ü,"),
    ],
)
def test_arguments_are_the_mapping_where_text_is_not_shown_as_it_is(arguments: str, shown: str) -> None:
    source = plain(arguments=CALLS_AS[arguments])
    assert text_of(source, call_of('{"a":1.0,"b":"ü"}')) == f"assistant: c;{shown};None"


@pytest.mark.parametrize("arguments", ["tojson", "items", "items filter", "keys"])
@pytest.mark.parametrize("text", ["[1]", "7", '"word"', "true"])
def test_arguments_that_are_no_object_are_the_value_or_stand_under_a_key(arguments: str, text: str) -> None:
    shown = f"arguments={text}," if arguments in OBJECTS_ONLY else text
    assert shown in text_of(plain(arguments=CALLS_AS[arguments]), call_of(text))


@pytest.mark.parametrize("arguments", ["tojson", "items", "items filter", "keys"])
@pytest.mark.parametrize("text", ['{"city": "Zü', "nonsense", "[" * 100, "NaN"])
def test_arguments_that_are_no_json_stand_under_a_key_where_a_mapping_is_taken(
    arguments: str, text: str
) -> None:
    as_json = json.dumps({"arguments": text}, ensure_ascii=False)
    shown = f"arguments={text}," if arguments in OBJECTS_ONLY else as_json
    assert shown in text_of(plain(arguments=CALLS_AS[arguments]), call_of(text))


@pytest.mark.parametrize("text", ["[1]", "7", '{"city": "Zü'])
@pytest.mark.parametrize("style", STYLES_WITH_TOOLS)
def test_no_arguments_are_lost_in_any_style(style: str, text: str) -> None:
    request = render_pb2.RenderChatRequest(messages=[Message(role="user", content="x"), call_of(text)])
    assert text in render_with(template_of(style), request).text


def test_a_template_whose_filter_for_text_does_not_exist_gets_the_mapping_as_with_transformers() -> None:
    call = {"id": "0", "name": "weather", "arguments": {"city": "Oslo", "days": 3}}
    messages = [user("w?"), assistant(None, tool_calls=[call]), tool("rain", "0"), user("?")]
    text = render_with(template_of("deepseek_v3_2"), to_request(messages, TOOLS)).text
    assert '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>' in text
    theirs = transformers_text("deepseek_v3_2", messages, tools=TOOLS, add_generation_prompt=True)
    assert text == theirs


@pytest.mark.parametrize(
    ("content", "form"),
    [
        ("{{ '-' if m.content is none else m.content }}", NullContent.NULL),
        ("{{ m.content or '' }}", NullContent.NULL),
        ("{{ m | tojson }}", NullContent.NULL),
        ("{{ m.content }}", NullContent.ABSENT),
        ("{{ m['content'] | trim }}", NullContent.ABSENT),
        ("{% for p in m.content %}{{ p.text if p.text is string else p }}{% endfor %}", NullContent.ABSENT),
        ("{{ '' + m.content }}", NullContent.EMPTY),
        ("{{ m.content.split('</think>')[-1] }}", NullContent.EMPTY),
        ("{{ m['content'] + '' if 'content' in m else 1 / 0 }}", NullContent.EMPTY),
    ],
)
def test_null_content_is_as_sent_or_absent_or_empty_whichever_the_template_takes(
    content: str, form: NullContent
) -> None:
    source = plain(content)
    found = capabilities(source)
    assert {found.calls.null_content, *(each.null_content for each in found.roles.values())} == {form}
    for message in (call_of("{}", None), Message(role="assistant"), Message(role="tool", tool_call_id="0")):
        text = text_of(source.removesuffix("{{ tools }}"), Message(role="user", content="q"), message)
        assert "None" not in text
        if message.tool_calls:
            assert text.endswith(";{};")


def test_null_content_is_decided_for_each_role_and_for_calls_alone() -> None:
    shown = "{% if m.tool_calls %}{{ m.content or '' }}{% else %}{{ '' + m.content }}{% endif %}"
    found = capabilities(plain(shown))
    assert found.calls.null_content is NullContent.NULL
    assert found.role("assistant").null_content is NullContent.EMPTY
    nowhere = "{{ 1 / 0 if not m.content and m.role == 'tool' else m.content }}"
    found = capabilities(plain(nowhere))
    assert found.role("tool").null_content is None
    assert found.role("user").null_content is NullContent.ABSENT


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize("has_calls", [False, True])
def test_parts_are_passed_on_for_the_roles_that_take_them_and_joined_for_the_others(
    role: str, has_calls: bool
) -> None:
    shown = (
        "{% if m.role == 'user' and m.content is not string %}"
        "{% for p in m.content %}<{{ p.text or p.type }}>{% endfor %}{% else %}{{ m.content }}{% endif %}"
    )
    message = Message(role=role, extra_json=json.dumps({"content": PARTS}))
    if has_calls:
        message.tool_calls.append(render_pb2.ToolCall(name="f"))
    question = Message(role="user", content="q")
    text = text_of(plain(shown), message if role == "user" else question, message)
    assert ("<one><two>" if role == "user" else f"{role}: one\ntwo;") in text
    image = Message(role=role, extra_json=json.dumps({"content": [*PARTS, {"type": "image"}]}))
    if role == "user":
        assert "<image>" in text_of(plain(shown), image)
    else:
        error = refusal(plain(shown), question, image)
        assert (error.reason, error.field) == (
            Reason.PARAMETER_OUT_OF_RANGE, "messages[1].extra_json.content[2]"
        )  # fmt: skip


@pytest.mark.parametrize(
    "shown", ["{{ m.content[0].text if m.content is not string else m.content }}", "{{ m.content | tojson }}"]
)
def test_a_template_that_shows_the_first_part_alone_or_the_list_as_json_does_not_take_parts(
    shown: str,
) -> None:
    message = Message(role="user", extra_json=json.dumps({"content": PARTS}))
    text = text_of(plain(shown), message)
    assert "one" in text
    assert "two" in text
    assert '"text"' not in text


NAMED_ROLES = (
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant', 'tool', 'critic'] %}"
    "[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("style", ["deepseek_r1", "deepseek_v2", "deepseek_v3", "deepseek_v3_1"])
def test_a_developer_s_message_is_the_system_s_in_templates_without_developers(style: str) -> None:
    template = template_of(style)
    developer = render_with(template, to_request([{"role": "developer", "content": "Be brief."}, user("x")]))
    assert developer == render_with(template, to_request([system("Be brief."), user("x")]))
    assert "Be brief." in developer.text


def test_a_developer_s_message_stays_one_where_the_template_shows_it() -> None:
    source = NAMED_ROLES.replace("'critic'", "'developer'")
    assert text_of(source, Message(role="developer", content="d")) == "[developer]d"


@pytest.mark.parametrize(
    ("source", "role"),
    [(NAMED_ROLES, "narrator"), (NAMED_ROLES.replace("'system', ", ""), "developer"),
     (NAMED_ROLES.replace("'system', ", ""), "system"), (NAMED_ROLES.replace(", 'tool'", ""), "tool")],
)  # fmt: skip
def test_a_role_that_the_template_leaves_out_is_refused_with_the_roles_that_it_shows(
    source: str, role: str
) -> None:
    error = refusal(source, Message(role="user", content="q"), Message(role=role, content="x"))
    assert (error.reason, error.field) == (Reason.PARAMETER_OUT_OF_RANGE, "messages[1].role")
    shown = [name for name in ("system", "user", "assistant", "tool", "critic") if f"'{name}'" in source]
    assert ", ".join(shown) in error.message
    assert role in error.message


def test_a_role_of_the_template_s_own_is_taken() -> None:
    assert text_of(NAMED_ROLES, Message(role="critic", content="x")) == "[critic]x"
    assert text_of(plain(), Message(role="narrator", content="x")) == "narrator: x;None"


@pytest.mark.parametrize("role", ["developer", "narrator", "system"])
def test_a_role_that_the_template_refuses_gets_the_template_s_own_words(role: str) -> None:
    source = "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}" \
        "{{ raise_exception('who is ' + m.role) }}{% endif %}{{ m.content }}{% endfor %}"  # fmt: skip
    error = refusal(source, Message(role=role, content="x"), Message(role="user", content="q"))
    assert error.reason is Reason.TEMPLATE_FAILED
    assert f"who is {role}" in error.message


@pytest.mark.parametrize("style", sorted(TEMPLATES_WITHOUT_TOOLS))
def test_calls_and_results_that_the_template_leaves_out_are_refused(style: str) -> None:
    with pytest.raises(ServiceError) as caught:
        render_with(template_of(style), render_pb2.RenderChatRequest(
            messages=[Message(role="user", content="q"), call_of("{}")]))  # fmt: skip
    assert (caught.value.reason, caught.value.field) == (
        Reason.TOOLS_UNSUPPORTED, "messages[1].tool_calls"
    )  # fmt: skip
    with pytest.raises(ServiceError) as caught:
        render_with(template_of(style), to_request([user("q"), tool("t", "x")]))
    assert (caught.value.reason, caught.value.field) == (Reason.PARAMETER_OUT_OF_RANGE, "messages[1].role")


def test_tools_that_a_template_reads_but_does_not_show_are_refused() -> None:
    source = "{% if tools %}You have tools.{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    error = refusal(source, Message(role="user", content="q"), tools_json=[json.dumps(TOOLS[0])])
    assert (error.reason, error.field) == (Reason.TOOLS_UNSUPPORTED, "tools_json")


def test_a_template_that_asks_for_more_than_a_question_still_has_its_tools_and_calls_probed() -> None:
    asks = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"
    plain_text = "{% for m in messages %}{{ m.content }}{% endfor %}"
    question = Message(role="user", content="q"), Message(role="assistant", content="a")
    tools = [json.dumps(TOOLS[0])]
    error = refusal(asks + plain_text, Message(role="system", content="s"), *question, tools_json=tools)
    assert error.reason is Reason.TOOLS_UNSUPPORTED
    shown = text_of(asks + plain_text + "{{ tools }}", Message(role="system", content="s"), *question)
    assert shown == "sqaNone"


@pytest.mark.parametrize("style", TEMPLATES)
def test_control_tokens_change_nothing_of_what_a_template_can_do(style: str) -> None:
    tokens = deepseek_tokenizer_().control_tokens
    assert template_of(style).capabilities == template_of(style, tokens).capabilities


@pytest.mark.parametrize("style", STYLES_WITH_TOOLS)
def test_a_template_that_can_do_all_gives_no_warning(style: str) -> None:
    assert list(template_of(style).capabilities["default"].warnings()) == []


@pytest.mark.parametrize(
    ("source", "warnings"),
    [
        ("{{ messages[0].content }}", ["tool calls", "tool definitions"]),
        (NAMED_ROLES, ["tool calls", "tool definitions"]),
        (plain().replace("{{ tools }}", ""), ["tool definitions"]),
        (NAMED_ROLES.replace("'system', ", "") + "{{ tools }}", ["system messages", "tool calls"]),
        (plain("{{ m.content if m.role != 'system' else raise_exception('no system') }}"), ["no system"]),
        (plain("{{ m.content if m.content else 1 / 0 }}"), ["without content"]),
        ("no message", ["a question is not in the prompt"]),
        ("{{ 1 / 0 }}", ["division by zero"]),
    ],
)
def test_what_a_template_cannot_do_is_a_warning_each(source: str, warnings: list[str]) -> None:
    found = list(capabilities(source).warnings())
    assert len(found) == len(warnings)
    for sentence, word in zip(found, warnings, strict=True):
        assert word in sentence


def test_all_probes_together_take_no_longer_than_one_rendering_may(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(time_limit, "monotonic", lambda: float(next(ticks)))
    loop = "{% for a in range(99999) %}"
    endless = ChatTemplate({"default": loop * 2 + "{% endfor %}" * 2}, {}, max_seconds=10_000)
    assert next(ticks) < 11_000
    assert "too long" in endless.capabilities["default"].role("user").failure


def test_the_summary_for_the_log_says_how_messages_are_prepared() -> None:
    assert template_of("kimi_k2").capabilities["default"].summary() == {
        "roles": "system,developer,user,assistant,tool,any",
        "parts": "system,developer,user,assistant,tool",
        "arguments": "text",
        "null_content": "null",
    }
    users_only = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    assert capabilities(users_only).summary() == {
        "roles": "user", "parts": "none", "arguments": "none", "null_content": "null"
    }  # fmt: skip
