"""OpenAI-style requests: each key reaches its field, and what cannot be honoured is refused by name."""

import json
from typing import Any

import pytest
from triptych.v1 import render_pb2, types_pb2

from services.render.request.conversation import read_conversation
from services.render.request.openai_request import read_openai_request
from shared.errors import Reason, ServiceError

USER = {"role": "user", "content": "hi"}


def read(**body: Any) -> render_pb2.RenderChatRequest:
    """A request with one message."""
    return read_openai_request(json.dumps({"messages": [USER], **body}))


def refusal(text: str) -> tuple[Reason, str]:
    """Reason and path of the error."""
    with pytest.raises(ServiceError) as caught:
        read_openai_request(text)
    return caught.value.reason, caught.value.field


def test_each_key_of_generation_reaches_its_field() -> None:
    request = read(
        temperature=0, top_p=0.5, top_k=3, min_p=0, presence_penalty=-1.5, frequency_penalty=2,
        repetition_penalty=1.5, n=2, seed=2**64 - 1, min_tokens=0, ignore_eos=True, prompt_logprobs=0,
        logit_bias={"7": -100, "0": 1.5}, stop_token_ids=[0, 5], logprobs=True, top_logprobs=0,
        max_completion_tokens=9, stop=["a", "b"], include_stop_str_in_output=True, skip_special_tokens=False,
        stop_in_reasoning=True,
    )  # fmt: skip
    assert request.sampling_params == types_pb2.SamplingParams(
        temperature=0, top_p=0.5, top_k=3, min_p=0, presence_penalty=-1.5, frequency_penalty=2,
        repetition_penalty=1.5, n=2, seed=2**64 - 1, min_tokens=0, ignore_eos=True, prompt_logprobs=0,
        logit_bias={7: -100, 0: 1.5}, stop_token_ids=[0, 5], logprobs=0, max_tokens=9,
    )  # fmt: skip
    assert request.text_params == render_pb2.TextParams(
        stop=["a", "b"], include_stop_in_output=True, skip_special_tokens=False, stop_in_reasoning=True
    )


@pytest.mark.parametrize(("value", "expected"), [(-1, 0), (0, 0), (1, 1), (2**32 - 1, 2**32 - 1)])
def test_all_tokens_are_asked_for_by_a_top_k_of_0_or_minus_1(value: int, expected: int) -> None:
    params = read(top_k=value).sampling_params
    assert params.HasField("top_k")
    assert params.top_k == expected


def test_each_key_of_the_prompt_reaches_its_field() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 1.0, "ü": None}}}
    request = read(
        tools=[tool],
        tool_choice="auto",
        chat_template_kwargs={"thinking": True},
        add_generation_prompt=False,
        continue_final_message=True,
        request_id="r",
        cache_salt="s",
        priority=-3,
    )
    assert list(request.tools_json) == [json.dumps(tool, ensure_ascii=False)], "same keys, order and numbers"
    assert request.chat_template_kwargs_json == '{"thinking": true}'
    assert request.HasField("add_generation_prompt")
    assert (request.continue_final_message, request.request_id) == (True, "r")
    assert (request.cache_salt, request.priority) == ("s", -3)


def test_messages_reach_the_template_as_they_are_written() -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": "", "name": "Ada", "mood": "curious"},
        {
            "role": "assistant", "content": None, "reasoning_content": "hm",
            "tool_calls": [
                {"index": 0, "id": "c1", "type": "function",
                 "function": {"name": "f", "arguments": '{"a":  1}'}},
                {"type": "function", "function": {"name": "g", "arguments": {"ü": 1}}},
                {"function": {"name": "h"}},
            ],
        },
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
    ]  # fmt: skip
    request = read_openai_request(json.dumps({"messages": messages}))
    read_back = read_conversation(request, set()).messages
    assert read_back[0] == messages[0]
    assert read_back[1] == messages[1]
    assert read_back[3] == messages[3]
    assert (read_back[2]["content"], read_back[2]["reasoning_content"]) == (None, "hm")
    calls = read_back[2]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ['{"a":  1}', '{"ü": 1}', "{}"]
    assert [call.get("id") for call in calls] == ["c1", None, None]


@pytest.mark.parametrize(
    ("value", "is_set", "field"),
    [
        (False, False, ""),
        (True, True, ""),
        ("content", True, "content"),
        ("reasoning_content", True, "reasoning_content"),
    ],
)
def test_what_is_continued_is_named_as_in_transformers(value: bool | str, is_set: bool, field: str) -> None:
    request = read(continue_final_message=value)
    assert (request.continue_final_message, request.continue_final_message_field) == (is_set, field)


@pytest.mark.parametrize("name", types_pb2.SamplingParams.DESCRIPTOR.fields_by_name)
def test_each_sampling_parameter_is_a_key(name: str) -> None:
    with pytest.raises(ServiceError) as caught:
        read(**{name: {"x": "no value of any"}})
    assert "is not known" not in caught.value.message


def test_null_is_as_absent() -> None:
    nulls = dict.fromkeys(
        ["temperature", "tools", "stop", "logprobs", "top_logprobs", "tool_choice", "max_tokens", "seed"]
    )
    assert read(**nulls) == read()
    assert read(logprobs=False) == read()
    assert read(stop="x").text_params.stop == ["x"]
    assert read(max_tokens=3, max_completion_tokens=3).sampling_params.max_tokens == 3


def test_who_asks_and_how_the_answer_comes_changes_nothing() -> None:
    assert (
        read(
            model="m",
            user="u",
            stream=True,
            stream_options={},
            parallel_tool_calls=True,
            response_format={"type": "text"},
        )
        == read()
    )


def test_tools_that_may_not_be_called_are_left_out() -> None:
    assert read(tools=[{"type": "function"}], tool_choice="none") == read()


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"foo": 1}, "foo"),
        ({"best_of": 2}, "best_of"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": 1e39}, "temperature"),
        ({"logit_bias": {"1": -(10**39)}}, "logit_bias[1]"),
        ({"n": -1}, "n"),
        ({"n": 2**32}, "n"),
        ({"stop_in_reasoning": 1}, "stop_in_reasoning"),
        ({"priority": 2**31}, "priority"),
        ({"continue_final_message": "role"}, "continue_final_message"),
        ({"continue_final_message": 1}, "continue_final_message"),
        ({"continue_final_message": ["content"]}, "continue_final_message"),
        ({"top_k": -2}, "top_k"),
        ({"max_completion_tokens": 2**32}, "max_completion_tokens"),
        ({"n": 1.5}, "n"),
        ({"seed": 2**64}, "seed"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"stop": 1}, "stop"),
        ({"stop": ["a", None]}, "stop[1]"),
        ({"stop_token_ids": [0, -1]}, "stop_token_ids[1]"),
        ({"logit_bias": []}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias[-1]"),
        ({"logit_bias": {"5000000000": 1}}, "logit_bias[5000000000]"),
        ({"logit_bias": {"1": "x"}}, "logit_bias[1]"),
        ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias[01]"),
        ({"logprobs": 5}, "logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": {}}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
        ({"messages": {}}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{"role": 1}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user", "content": 1}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "name": 1}]}, "messages[0].name"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}, "x": 1}]}]},
            "messages[0].tool_calls[0].x"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]},
            "messages[0].tool_calls[0].type"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "messages[0].tool_calls[0].function.name"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}]},
            "messages[0].tool_calls[0].function.arguments"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_with_its_path(body: dict[str, Any], path: str) -> None:
    assert refusal(json.dumps({"messages": [USER], **body})) == (Reason.PARAMETER_OUT_OF_RANGE, path)


def test_the_largest_number_of_a_32_bit_float_is_itself() -> None:
    largest = 2.0**128 - 2.0**104
    assert read(temperature=largest).sampling_params.temperature == largest


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", Reason.INVALID_JSON),
        ("[]", Reason.INVALID_JSON),
        ('{"temperature": NaN}', Reason.INVALID_JSON),
        ('{"temperature": 1e400}', Reason.INVALID_JSON),
        ('{"a": ' * 100_000, Reason.INVALID_JSON),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', Reason.INVALID_TEXT),
    ],
)
def test_what_is_no_json_object_of_text_is_refused(text: str, reason: Reason) -> None:
    assert refusal(text)[0] is reason
