"""Which parser a template calls for, and where a prompt leaves the output."""

import pytest
from triptych.v1 import render_pb2

from services.render.output.formats import FORMATS, PARSERS, ParserName, choose_parser
from tests.support.render_models import DEMO_MODEL, TEMPLATES


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (TEMPLATES["deepseek_v2"], ParserName.NONE),
        (TEMPLATES["deepseek_v3"], ParserName.DEEPSEEK_V3),
        (TEMPLATES["deepseek_r1"], ParserName.DEEPSEEK_R1),
        (TEMPLATES["deepseek_v3_1"], ParserName.DEEPSEEK_V3_1),
        (TEMPLATES["kimi_k2"], ParserName.KIMI_K2),
        (TEMPLATES["glm_4_7_flash"], ParserName.GLM_4_7),
        (TEMPLATES["deepseek_v3_2"], ParserName.DEEPSEEK_V3_2),
        ("{% set dsml = '｜DSML｜' %}{{ '<' + dsml + 'function_calls>' }}", ParserName.DEEPSEEK_V3_2),
        ((DEMO_MODEL / "chat_template.jinja").read_text(), ParserName.NONE),
        ("", ParserName.NONE),
    ],
)
def test_the_template_s_way_to_write_calls_names_the_parser(template: str, expected: ParserName) -> None:
    assert choose_parser(ParserName.AUTO, [template])[0] is expected
    assert choose_parser(ParserName.AUTO, ["plain", template])[0] is expected, "any of several templates"


def test_what_is_configured_wins() -> None:
    assert choose_parser(ParserName.NONE, [TEMPLATES["kimi_k2"]]) == (ParserName.NONE, "as configured")


def test_each_name_but_auto_is_a_parser_and_each_parser_a_name() -> None:
    assert PARSERS.keys() == set(ParserName) - {ParserName.AUTO}
    assert sorted(PARSERS.values()) == sorted(render_pb2.Parser.values())
    assert FORMATS.keys() == set(PARSERS.values()) - {render_pb2.PARSER_UNSPECIFIED}


def test_no_tag_is_the_beginning_of_another() -> None:
    for output_format in FORMATS.values():
        for tag in output_format.tags:
            assert not [each for each in output_format.tags if each != tag and each.startswith(tag)]
            assert all("<" not in each[1:] for each in output_format.tags)


@pytest.mark.parametrize(
    ("parser", "prompt", "expected"),
    [
        (render_pb2.PARSER_DEEPSEEK_V3_1, "<｜User｜>hi<｜Assistant｜><think>", True),
        (render_pb2.PARSER_DEEPSEEK_V3_1, "<｜User｜>hi<｜Assistant｜></think>", False),
        (render_pb2.PARSER_DEEPSEEK_V3_1, "<｜User｜>hi<｜Assistant｜><think>Let me", True),
        (render_pb2.PARSER_DEEPSEEK_V3_1, "<｜User｜>hi<｜Assistant｜><think>hm</think>ye", False),
        (render_pb2.PARSER_DEEPSEEK_V3_1, "<｜tool▁output▁begin｜><think><｜tool▁output▁end｜>", False),
        (render_pb2.PARSER_DEEPSEEK_R1, "<｜User｜>hi<｜Assistant｜><think>\n", True),
        (render_pb2.PARSER_DEEPSEEK_R1, "<｜User｜><think><｜Assistant｜>", False),
        (render_pb2.PARSER_DEEPSEEK_V3, "<｜User｜>hi<｜Assistant｜><think>\n", False),
        (render_pb2.PARSER_KIMI_K2, "<|im_user|>user<|im_middle|><think><|im_end|>"
            "<|im_assistant|>assistant<|im_middle|>", False),
        (render_pb2.PARSER_KIMI_K2, "<|im_assistant|>assistant<|im_middle|><think>", True),
        (render_pb2.PARSER_KIMI_K2, "", False),
        (render_pb2.PARSER_DEEPSEEK_V3_2, "<｜User｜>hi<｜Assistant｜><think>", True),
        (render_pb2.PARSER_DEEPSEEK_V3_2, "<think>a</think>b</function_results>\n\n<think>", True),
        (render_pb2.PARSER_DEEPSEEK_V3_2, "<result><think></result></function_results>\n\n</think>", False),
        (render_pb2.PARSER_GLM_4_7, "<|user|>hi<|assistant|><think>", True),
        (render_pb2.PARSER_GLM_4_7, "<|user|><think><|assistant|></think>", False),
    ],
)  # fmt: skip
def test_only_the_assistant_s_own_last_words_say_whether_reasoning_is_open(
    parser: render_pb2.Parser.ValueType, prompt: str, expected: bool
) -> None:
    assert FORMATS[parser].ends_in_reasoning(prompt) is expected
