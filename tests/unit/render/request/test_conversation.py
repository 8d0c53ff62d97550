"""From the request's message to what a template reads."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triptych.v1 import render_pb2

from services.render.request.conversation import Conversation, read_conversation
from services.render.request.json_text import MAX_DEPTH
from shared.errors import Reason, ServiceError

Message = render_pb2.ChatMessage
LONE_SURROGATE = '{"text": "\\ud83d alone"}'
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def read(*messages: render_pb2.ChatMessage, **fields: Any) -> Conversation:
    """Reads a request with these messages; `messages` alone is reserved."""
    request = render_pb2.RenderChatRequest(
        messages=messages or [Message(role="user", content="hi")], **fields
    )
    return read_conversation(request, {"messages"})


def refusal(*messages: render_pb2.ChatMessage, **fields: Any) -> tuple[Reason, str]:
    """Reason and field of the error."""
    with pytest.raises(ServiceError) as caught:
        read(*messages, **fields)
    return caught.value.reason, caught.value.field


def test_an_empty_conversation_is_refused() -> None:
    with pytest.raises(ServiceError) as caught:
        read_conversation(render_pb2.RenderChatRequest(), set(), "request.")
    assert (caught.value.reason, caught.value.field) == (Reason.PARAMETER_OUT_OF_RANGE, "request.messages")


def test_a_message_without_a_role_is_refused() -> None:
    assert refusal(Message(content="hi")) == (Reason.PARAMETER_OUT_OF_RANGE, "messages[0].role")


def test_null_and_empty_content_are_kept_apart() -> None:
    unset, empty, explicit = read(
        Message(role="assistant"),
        Message(role="assistant", content=""),
        Message(role="assistant", extra_json='{"content": null}'),
    ).messages
    assert unset == explicit == {"role": "assistant", "content": None}
    assert empty == {"role": "assistant", "content": ""}


def test_unset_fields_are_absent_and_set_ones_are_there() -> None:
    message = Message(
        role="assistant", content="x", reasoning_content="", name="Bo", extra_json='{"z": 1, "a": [true]}'
    )
    [values] = read(message).messages
    assert values == {
        "role": "assistant", "content": "x", "reasoning_content": "", "name": "Bo", "z": 1, "a": [True]
    }  # fmt: skip
    assert list(values)[-2:] == ["z", "a"], "keys keep their order"


def test_the_role_comes_before_the_content() -> None:
    for message in (Message(role="user", content="x"), Message(role="user")):
        [values] = read(message).messages
        assert list(values) == ["role", "content"]


def test_a_call_without_a_name_is_refused() -> None:
    message = Message(role="assistant", tool_calls=[render_pb2.ToolCall(id="a", arguments_json="{}")])
    assert refusal(message) == (Reason.PARAMETER_OUT_OF_RANGE, "messages[0].tool_calls[0].name")


def test_json_of_more_than_a_mebibyte_is_refused() -> None:
    text = json.dumps({"a": "x" * 2**20})
    call = render_pb2.ToolCall(name="f", arguments_json=text)
    for message, field in (
        (Message(role="user", extra_json=text), "messages[0].extra_json"),
        (Message(role="user", tool_calls=[call]), "messages[0].tool_calls[0].arguments_json"),
    ):
        assert refusal(message) == (Reason.PARAMETER_OUT_OF_RANGE, field)
    user = Message(role="user", content="x")
    more: tuple[tuple[dict[str, Any], str], ...] = (
        ({"chat_template_kwargs_json": text}, "chat_template_kwargs_json"),
        ({"tools_json": [json.dumps({"a": "x" * 2**19})] * 2}, "tools_json"),
    )
    for fields, field in more:
        assert refusal(user, **fields) == (Reason.PARAMETER_OUT_OF_RANGE, field)
    just_fits = json.dumps({"a": "x" * (2**20 - len('{"a": ""}'))})
    assert read(Message(role="user", extra_json=just_fits)).messages


def test_a_number_that_no_float_holds_is_refused() -> None:
    message = Message(role="user", extra_json='{"a": [1e999]}')
    assert refusal(message) == (Reason.INVALID_JSON, "messages[0].extra_json")


def test_content_may_be_a_list_of_parts() -> None:
    parts = [{"type": "text", "text": "hi"}]
    [values] = read(Message(role="user", extra_json=json.dumps({"content": parts}))).messages
    assert values["content"] == parts


def test_a_key_that_the_message_itself_sets_is_refused() -> None:
    for key in ("role", "content"):
        message = Message(role="user", content="x", extra_json=f'{{"{key}": "y"}}')
        assert refusal(message) == (Reason.INVALID_JSON, "messages[0].extra_json")


def test_a_tool_call_and_its_result_have_openai_s_form() -> None:
    call = render_pb2.ToolCall(id="c1", name="weather", arguments_json='{"city": "Bern"}')
    assistant, tool = read(
        Message(role="assistant", tool_calls=[call]),
        Message(role="tool", content="rain", tool_call_id="c1"),
    ).messages
    function = {"name": "weather", "arguments": '{"city": "Bern"}'}
    assert assistant["tool_calls"] == [{"id": "c1", "type": "function", "function": function}]
    assert tool == {"role": "tool", "content": "rain", "tool_call_id": "c1"}


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1), JSON_VALUES, min_size=1))
def test_tools_arrive_exactly_as_sent(tool: dict[str, Any]) -> None:
    text = json.dumps(tool, ensure_ascii=False)
    [read_back] = read(tools_json=[text]).tools
    assert json.dumps(read_back, ensure_ascii=False) == text


def test_large_integers_and_floats_keep_their_kind() -> None:
    text = '{"big": 123456789012345678901234567890, "one": 1, "real": 1.0, "none": null}'
    [tool] = read(tools_json=[text]).tools
    assert json.dumps(tool) == text


@pytest.mark.parametrize("content", ["5", "true", '{"a": 1}'])
@pytest.mark.parametrize("role", ["user", "system", "assistant"])
def test_content_that_is_neither_text_nor_parts_is_refused(role: str, content: str) -> None:
    message = Message(role=role, extra_json=f'{{"content": {content}}}')
    with pytest.raises(ServiceError) as caught:
        read(message)
    assert caught.value.field == "messages[0].extra_json.content"
    assert content in caught.value.message


def test_an_integer_of_too_many_digits_is_named_without_python_s_advice() -> None:
    with pytest.raises(ServiceError, match="an integer has too many digits to be read") as caught:
        read(Message(role="user", extra_json='{"a": 1' + "0" * 5000 + "}"))
    assert caught.value.reason is Reason.INVALID_JSON


@pytest.mark.parametrize(
    "text", ["{", "[]", "1", "null", '{"a": NaN}', '{"a": -Infinity}', '{"a": 1' + "0" * 5000 + "}"]
)
def test_what_is_not_a_json_object_is_refused_with_its_path(text: str) -> None:
    user = Message(role="user", content="hi")
    assert refusal(user, tools_json=['{"a": 1}', text]) == (Reason.INVALID_JSON, "tools_json[1]")
    assert refusal(user, chat_template_kwargs_json=text) == (Reason.INVALID_JSON, "chat_template_kwargs_json")
    extra = Message(role="user", content="hi", extra_json=text)
    assert refusal(user, extra) == (Reason.INVALID_JSON, "messages[1].extra_json")


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 900, 960, 985, 1000, 100_000])
def test_json_nested_too_deeply_is_refused(depth: int) -> None:
    # With a surrogate pair in it, which is looked at once more.
    text = '{"a": ' * depth + '"\\ud83d\\ude00"' + "}" * depth
    assert refusal(tools_json=[text]) == (Reason.INVALID_JSON, "tools_json[0]")
    user = Message(role="user", content="hi", extra_json=text)
    assert refusal(user) == (Reason.INVALID_JSON, "messages[0].extra_json")


def test_json_as_deep_as_may_be_is_read() -> None:
    text = '{"a": ' * MAX_DEPTH + '"\\ud83d\\ude00"' + "}" * MAX_DEPTH
    assert json.dumps(read(tools_json=[text]).tools[0]) == text


def test_an_empty_tool_is_refused() -> None:
    assert refusal(tools_json=[""]) == (Reason.PARAMETER_OUT_OF_RANGE, "tools_json[0]")


def test_a_lone_surrogate_is_refused_with_its_path() -> None:
    user = Message(role="user", content="hi")
    assert refusal(user, tools_json=[LONE_SURROGATE]) == (Reason.INVALID_TEXT, "tools_json[0]")
    assert refusal(user, chat_template_kwargs_json=LONE_SURROGATE) == (
        Reason.INVALID_TEXT,
        "chat_template_kwargs_json",
    )
    assert refusal(Message(role="user", content="hi", extra_json=LONE_SURROGATE)) == (
        Reason.INVALID_TEXT,
        "messages[0].extra_json",
    )
    for arguments in (LONE_SURROGATE, '"\\ud83d"', '["\\ud83d"]'):
        call = render_pb2.ToolCall(name="f", arguments_json=arguments)
        assert refusal(user, Message(role="assistant", tool_calls=[call])) == (
            Reason.INVALID_TEXT,
            "messages[1].tool_calls[0].arguments_json",
        )


def test_a_whole_surrogate_pair_is_a_character() -> None:
    [tool] = read(tools_json=['{"text": "\\ud83d\\ude00"}']).tools
    assert tool == {"text": "😀"}


def test_variables_that_the_renderer_sets_are_refused() -> None:
    assert refusal(chat_template_kwargs_json='{"thinking": true, "messages": []}') == (
        Reason.PARAMETER_OUT_OF_RANGE,
        "chat_template_kwargs_json.messages",
    )
    assert read(chat_template_kwargs_json='{"thinking": true}').variables == {"thinking": True}


def test_the_generation_prompt_is_the_default_and_excludes_continuation() -> None:
    assert read().add_generation_prompt
    assert not read(add_generation_prompt=False).add_generation_prompt
    continued = read(continue_final_message=True)
    assert (continued.add_generation_prompt, continued.continued_field) == (False, "content")
    assert refusal(continue_final_message=True, add_generation_prompt=True) == (
        Reason.PARAMETER_OUT_OF_RANGE,
        "add_generation_prompt",
    )


@pytest.mark.parametrize("text", ["", "  ", "null", " null\n", "{}"])
def test_empty_arguments_are_an_empty_object(text: str) -> None:
    call = render_pb2.ToolCall(name="f", arguments_json=text)
    [message] = read(Message(role="assistant", tool_calls=[call])).messages
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize("text", ['{"a":  1.0}', "[1]", "7", '{"city": "Zü', "[" * 100_000, '"\\ud83d'])
def test_other_arguments_are_the_text_that_the_model_wrote(text: str) -> None:
    call = render_pb2.ToolCall(name="f", arguments_json=text)
    [message] = read(Message(role="assistant", tool_calls=[call])).messages
    assert message["tool_calls"][0]["function"]["arguments"] == text


def test_the_field_that_is_continued_is_content_or_reasoning_content() -> None:
    assert not read().continued_field
    for name in ("content", "reasoning_content"):
        read_back = read(continue_final_message=True, continue_final_message_field=name)
        assert (read_back.continued_field, read_back.add_generation_prompt) == (name, False)
    field = "continue_final_message_field"
    assert refusal(continue_final_message=True, continue_final_message_field="role") == (
        Reason.PARAMETER_OUT_OF_RANGE, field
    )  # fmt: skip
    assert refusal(continue_final_message_field="content") == (Reason.PARAMETER_OUT_OF_RANGE, field)
