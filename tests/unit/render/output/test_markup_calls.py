"""Calls that are written parameter by parameter: the JSON that callers get, however the call comes."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triptych.v1 import render_pb2

from services.render.output.call_reader import MAX_HEADER_CHARS
from services.render.output.string_parameters import string_parameters
from tests.unit.render.output.test_parser import GLM, V3_2, parse, segments_of


def dsml(*parameters: tuple[str, str, str], name: str = "f") -> str:
    """parameters: key, the attribute `string`, value."""
    written = "".join(
        f'<｜DSML｜parameter name="{key}" string="{is_string}">{value}</｜DSML｜parameter>\n'
        for key, is_string, value in parameters
    )
    call = f'<｜DSML｜invoke name="{name}">\n{written}</｜DSML｜invoke>\n'
    return f"<｜DSML｜function_calls>\n{call}</｜DSML｜function_calls>"


def glm(*parameters: tuple[str, str], name: str = "f", between: str = "") -> str:
    written = "".join(
        f"<arg_key>{key}</arg_key>{between}<arg_value>{value}</arg_value>{between}"
        for key, value in parameters
    )
    return f"<tool_call>{name}{between}{written}</tool_call>"


def arguments_of(parser: render_pb2.Parser.ValueType, text: str) -> str:
    """Of the one call in it."""
    [call], [same] = parse(parser, [text]).calls, parse(parser, list(text)).calls
    assert call == same
    assert call.name == "f"
    return call.arguments


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"))


@given(st.dictionaries(st.sampled_from(["a", "b c", "你"]), ANY_TEXT))
@settings(deadline=None)
def test_strings_come_as_they_were_written(values: dict[str, str]) -> None:
    text = dsml(*((key, "true", value) for key, value in values.items()))
    assert json.loads(arguments_of(V3_2, text)) == values


@given(
    st.recursive(st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text('ab "\\\n'), st.lists)
)
@settings(deadline=None)
def test_json_comes_as_it_was_written(value: Any) -> None:
    written = json.dumps(value)
    assert arguments_of(V3_2, dsml(("k", "false", written))) == f'{{"k": {written}}}'
    assert arguments_of(GLM, glm(("k", written), name="f")) == f'{{"k": {written}}}'


@pytest.mark.parametrize("value", ["Oslo", "{", "NaN", "Infinity", "1e999", "[" * 5000, "9" * 5000, "", "01"])
def test_what_is_no_json_is_a_string(value: str) -> None:
    expected = {"k": value}
    assert json.loads(arguments_of(V3_2, dsml(("k", "false", value)))) == expected
    assert json.loads(arguments_of(GLM, glm(("k", value)))) == expected


@pytest.mark.parametrize(("parser", "text"), [(V3_2, dsml()), (GLM, glm()), (GLM, glm(between="\n"))])
def test_a_call_without_parameters_has_an_empty_object(parser: Any, text: str) -> None:
    assert arguments_of(parser, text) == "{}"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("city", "3011", '"3011"'),
        ("city", "null", '"null"'),
        ("city", ' "x"\n', '" \\"x\\"\\n"'),
        ("note", "null", "null"),
        ("note", "3", '"3"'),
        ("days", "3", "3"),
        ("days", "three", '"three"'),
    ],
)
def test_glm_s_values_are_what_the_schema_says(key: str, value: str, expected: str) -> None:
    for between in ("", "\n"):
        assert arguments_of(GLM, glm((key, value), between=between)) == f'{{"{key}": {expected}}}'
    assert parse(GLM, [glm((key, "3"), name="other")]).calls[0].arguments == f'{{"{key}": 3}}'


def test_strings_are_sent_as_they_come_and_other_values_when_they_are_complete() -> None:
    text = glm(("city", 'a"b'), ("days", "[1]"))
    pieces = [segment.text for segment in segments_of(GLM, list(text)) if segment.call and segment.text]
    assert pieces == ['{"city": "', "a", '\\"', "b", '"', ', "days": ', "[1]", "}"]


PARAMETER, PARAMETER_END = '<｜DSML｜parameter name="k" string="true">', "</｜DSML｜parameter>"
INVOKE, INVOKE_END = '<｜DSML｜invoke name="f">', "</｜DSML｜invoke>"


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (V3_2, f"{INVOKE}{PARAMETER}v{INVOKE_END}"),
        (V3_2, f"{INVOKE}{PARAMETER}v{PARAMETER}w{PARAMETER_END}{INVOKE_END}"),
        (V3_2, f"{INVOKE}stray{INVOKE_END}"),
        (V3_2, f"{INVOKE}{PARAMETER}v{PARAMETER_END}stray {PARAMETER}v{PARAMETER_END}{INVOKE_END}"),
        (V3_2, f"<｜DSML｜invoke>{INVOKE_END}"),
        (V3_2, f'<｜DSML｜invoke name="">{INVOKE_END}'),
        (V3_2, f"{INVOKE}<｜DSML｜parameter k>v{PARAMETER_END}{INVOKE_END}"),
        (V3_2, f"{INVOKE}{PARAMETER}v{PARAMETER_END}"),
        (V3_2, f'<｜DSML｜invoke name="{"f" * 2000}">{INVOKE_END}'),
        (GLM, "<tool_call></tool_call>"),
        (GLM, "<tool_call>two words</tool_call>"),
        (GLM, "<tool_call>two words<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>"),
        (GLM, "<tool_call>f<arg_key>k</arg_key></tool_call>"),
        (GLM, "<tool_call>f<arg_key>k</arg_key>stray<arg_value>v</arg_value></tool_call>"),
        (GLM, "<tool_call>f<arg_key>k<arg_value>v</arg_value></tool_call>"),
        (GLM, "<tool_call>f<arg_key>k</arg_key><arg_value>v</tool_call>"),
        (GLM, "<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value>stray</tool_call>"),
        (GLM, f"<tool_call>{'f' * (MAX_HEADER_CHARS + 1)}</tool_call>"),
    ],
)
def test_a_malformed_call_is_sent_as_the_text_that_it_is(parser: Any, text: str) -> None:
    for pieces in ([text], list(text)):
        result = parse(parser, pieces)
        assert (result.text, result.calls) == (text, [])


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string"]}, "string"),
        ({"type": "string", "enum": ["a"]}, "string"),
        ({"enum": ["a", "b"]}, "string"),
        ({"const": "a"}, "string"),
        ({"type": ["string", "null"]}, "nullable"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "nullable"),
        ({"oneOf": [{"enum": ["a"]}, {"const": None}]}, "nullable"),
        ({"enum": ["a", None]}, "nullable"),
        ({"type": "integer"}, None),
        ({"type": ["string", "integer"]}, None),
        ({"type": "null"}, None),
        ({"enum": ["a", 1]}, None),
        ({"enum": "a"}, None),
        ({"type": 3}, None),
        ({"$ref": "#/$defs/city"}, None),
        ({"anyOf": [{"type": "string"}, {}]}, None),
        ({"anyOf": "x"}, None),
        ({}, None),
        (True, None),
    ],
)
def test_a_schema_says_which_parameters_take_strings(schema: Any, kind: str | None) -> None:
    function = {"name": "f", "parameters": {"properties": {"k": schema}}}
    expected = {
        "string": [render_pb2.StringParameters(function="f", names=["k"])],
        "nullable": [render_pb2.StringParameters(function="f", nullable_names=["k"])],
        None: [],
    }
    for tool in ({"type": "function", "function": function}, function):
        assert string_parameters([tool]) == expected[kind]


STRING = {"properties": {"k": {"type": "string"}}}


@pytest.mark.parametrize(
    "tool",
    [
        {},
        {"function": "f"},
        {"name": "f"},
        {"name": "f", "parameters": []},
        {"name": "f", "parameters": {"properties": [1]}},
        {"name": 3, "parameters": STRING},
        {"type": "function", "function": {"parameters": STRING}},
    ],
)
def test_a_tool_without_a_name_or_schema_declares_no_strings(tool: dict[str, Any]) -> None:
    assert string_parameters([tool]) == []
