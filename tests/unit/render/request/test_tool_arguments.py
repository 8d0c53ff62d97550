"""Arguments that read as text and as a mapping."""

import json

import pytest

from services.render.request.tool_arguments import ToolArguments, is_text

TEXT = '{"city":  "Zürich", "days": 3, "ratio": 1.0}'


def test_as_text_they_are_what_the_model_wrote() -> None:
    arguments = ToolArguments(TEXT)
    assert str(arguments) == TEXT
    assert "<" + arguments + ">" == f"<{TEXT}>"
    assert f"{arguments}" == TEXT
    assert is_text(arguments)


def test_as_a_mapping_they_keep_order_and_types() -> None:
    arguments = ToolArguments(TEXT)
    assert list(arguments.items()) == [("city", "Zürich"), ("days", 3), ("ratio", 1.0)]
    assert json.dumps(arguments, ensure_ascii=False) == '{"city": "Zürich", "days": 3, "ratio": 1.0}'


@pytest.mark.parametrize("text", ["", "  ", "null", "{}"])
def test_nothing_and_null_count_as_an_empty_object(text: str) -> None:
    assert dict(ToolArguments(text)) == {}
    assert str(ToolArguments(text)) == "{}"


@pytest.mark.parametrize(
    "text", ['{"city": "Zü', "[1, 2]", "7", '"text"', "[" * 100_000, '{"a": ' * 500 + "1" + "}" * 500]
)
def test_what_is_no_object_stays_text_and_is_found_under_arguments(text: str) -> None:
    assert str(ToolArguments(text)) == text
    assert dict(ToolArguments(text)) == {"arguments": text}


def test_they_have_a_text_s_methods_slices_and_products() -> None:
    arguments = ToolArguments(TEXT)
    assert arguments[:3] == TEXT[:3]
    assert arguments * 2 == 2 * arguments == TEXT * 2
    assert arguments.strip() == TEXT
    assert arguments.split(",") == TEXT.split(",")
    assert arguments.startswith("{")
    assert arguments["city"] == "Zürich"


def test_an_argument_that_is_named_like_a_method_hides_it_not() -> None:
    arguments = ToolArguments('{"strip": 1}')
    assert arguments.strip() == '{"strip": 1}'
    assert arguments["strip"] == 1
