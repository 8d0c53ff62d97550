"""Files of requests: rendered as transformers does, read back, compared."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from triptych.v1 import scheduler_pb2, types_pb2

from services.render.config import RenderConfig
from services.render.golden.render_diff import first_difference
from services.render.golden.render_file import GoldenLine, read_lines, render_lines, to_line
from services.render.loading import load_renderer
from services.render.renderer import Renderer
from shared.config import ConfigError
from tests.support.render_models import DEMO_MODEL, SPECIAL_TOKENS, TEMPLATES, make_folder

CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
CONVERSATION: list[Any] = [
    {"role": "system", "content": "Be 你."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "rain", "tool_call_id": "functions.f:0"},
    {"role": "assistant", "content": "Rain."},
    {"role": "user", "content": "And tomorrow?"},
]
Request = scheduler_pb2.GenerateRequest


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    """Of the embedded model."""
    return load_renderer(RenderConfig(model=DEMO_MODEL)).renderer


def decode(token_ids: Any) -> str:
    return "".join(chr(96 + each) for each in token_ids)


@pytest.mark.parametrize("style", ["deepseek_v3", "deepseek_v3_1", "kimi_k2"])
def test_a_file_s_tokens_are_those_of_transformers(style: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, tokenizer_config={"chat_template": TEMPLATES[style]})
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(DEMO_MODEL / "tokenizer.json"), **SPECIAL_TOKENS)
    expected = theirs.apply_chat_template(
        CONVERSATION, tools=[TOOL], chat_template=TEMPLATES[style], add_generation_prompt=True, tokenize=True,
        return_dict=False,
    )  # fmt: skip
    line = json.dumps({"messages": CONVERSATION, "tools": [TOOL]}).encode()
    [rendered] = render_lines(load_renderer(RenderConfig(model=folder)).renderer, [line], "x")
    assert json.loads(rendered)["prompt_token_ids"] == expected


def test_lines_are_read_back_as_they_were_rendered(renderer: Renderer) -> None:
    lines = [
        b'{"messages": [{"role": "user", "content": "hi"}], "seed": 0, "temperature": 0}\n',
        b"\n",
        b'{"messages": [{"role": "user", "content": "ho"}], "logit_bias": {"5": 1, "12": 2}}',
    ]
    rendered = list(render_lines(renderer, lines, "x"))
    assert len(rendered) == 2
    assert rendered == [to_line(each) for each in read_lines((line.encode() for line in rendered), "x")]
    first = json.loads(rendered[0])
    assert first["sampling_params"] == {"seed": "0", "temperature": 0.0}, "zero is not unset"
    assert "\n" not in rendered[1]


def test_lines_do_not_depend_on_the_folder_s_name(tmp_path: Path) -> None:
    line = b'{"messages": [{"role": "user", "content": "hi"}]}'
    template = {"chat_template": TEMPLATES["deepseek_v3"]}
    folders = [make_folder(tmp_path / name, tokenizer_config=template) for name in ("one", "other")]
    renderers = [load_renderer(RenderConfig(model=folder)).renderer for folder in folders]
    one, other = (list(render_lines(each, [line], "x")) for each in renderers)
    assert one == other
    [named] = render_lines(renderers[0], [line], "x", with_model=True)
    assert json.loads(named)["model"] == "one"


def test_the_text_of_a_prompt_is_in_its_line_where_it_is_asked_for(renderer: Renderer) -> None:
    line = b'{"messages": [{"role": "user", "content": "hi \xe4\xbd\xa0"}]}'
    [with_text] = render_lines(renderer, [line], "x", with_text=True)
    [without] = render_lines(renderer, [line], "x")
    assert json.loads(with_text)["prompt_text"] == "<｜begin▁of▁sentence｜><｜User｜>hi 你<｜Assistant｜>"
    [read] = read_lines([with_text.encode()], "x")
    assert to_line(read) == with_text
    assert to_line(GoldenLine(read.request)) == without, "all else is the same"
    assert first_difference([read], read_lines([without.encode()], "x"), None) == []


def test_texts_show_a_difference_without_a_tokenizer() -> None:
    first, second = request(1, 2, text="a" * 50 + "X" * 90), request(1, 3, text="a" * 50 + "Y")
    assert first_difference([first], [second], None)[-2:] == [
        f"  first    '{'a' * 40}{'X' * 60}'",
        f"  second   '{'a' * 40}Y'",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"messages": [], "foo": 1}', "x, line 3: the key 'foo' is not known here"),
        (b'{"messages": []}', "x, line 3: messages is empty; allowed: at least one message"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "x, line 3: not UTF-8"),
        (b"{", "x, line 3: not valid JSON"),
        (
            b'{"messages": [{"role": "user", "content": "hi"}], "top_p": 2}',
            "x, line 3: sampling_params.top_p is 2",
        ),
        (
            b'{"messages": [{"role": "user", "content": "hi"}], "n": 129}',
            "x, line 3: sampling_params.n is 129; allowed: 1 to 128",
        ),
        (
            b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 0}',
            "x, line 3: sampling_params.max_tokens is 0",
        ),
    ],
)
def test_an_error_names_file_line_and_key(renderer: Renderer, line: bytes, message: str) -> None:
    good = b'{"messages": [{"role": "user", "content": "hi"}]}'
    rendered = render_lines(renderer, [good, b" \n", line], "x")
    assert next(rendered)
    with pytest.raises(ConfigError) as caught:
        next(rendered)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"{}",
        b"1",
        b'{"prompt": 1}',
        b"\xff",
        b'{"prompt_token_ids": [1], "prompt_text": 1}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_was_not_rendered_is_refused(line: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^y, line 1: not a request that render-file wrote$"):
        list(read_lines([line], "y"))


def test_a_file_of_another_tokenizer_is_refused(renderer: Renderer) -> None:
    lines = [
        line.encode()
        for line in render_lines(renderer, [b'{"messages": [{"role": "user", "content": "hi"}]}'], "x")
    ]
    assert list(read_lines(lines, "y", renderer.tokenizer_fingerprint)) == list(read_lines(lines, "y"))
    with pytest.raises(ConfigError, match=r"^y, line 1: made with another tokenizer than --model's$"):
        list(read_lines(lines, "y", "another"))


@pytest.mark.parametrize("lines", [[], [b"\n", b"  \n"]])
def test_a_file_without_requests_is_refused(renderer: Renderer, lines: list[bytes]) -> None:
    for read in (partial(render_lines, renderer), read_lines):
        with pytest.raises(ConfigError, match=r"^x holds no request$"):
            list(read(lines, "x"))


def request(*token_ids: int, text: str = "", **params: Any) -> GoldenLine:
    sampling_params = types_pb2.SamplingParams(**params)
    return GoldenLine(Request(prompt_token_ids=token_ids, sampling_params=sampling_params), text)


def test_equal_files_have_no_difference() -> None:
    assert first_difference([request(1), request(2)], [request(1), request(2)], decode) == []
    assert first_difference([], [], None) == []


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([request(1)], [], ["the first file has a request 1, the second one ends before it"]),
        ([], [request(1)], ["the second file has a request 1, the first one ends before it"]),
        (
            [request(1), request(1, 2, 3, 4)],
            [request(1), request(1, 2, 5)],
            [
                "request 2 differs in its prompt from token 2 on (4 and 3 tokens)",
                "  both     1 2",
                "  first    3 4",
                "  second   5",
            ],
        ),
        (
            [request(1, temperature=0)],
            [request(1)],
            ["request 1 differs in sampling_params.temperature: 0.0 and unset"],
        ),
        (
            [GoldenLine(Request(model="a"))],
            [GoldenLine(Request(model="b"))],
            ["request 1 differs in model: a and b"],
        ),
        ([request(1, 2)], [request(1)], [
            "request 1 differs in its prompt from token 1 on (2 and 1 tokens)",
            "  both     1",
            "  first    2",
            "  second   ",
        ]),
    ],
)  # fmt: skip
def test_the_first_difference_is_shown(first: Any, second: Any, expected: list[str]) -> None:
    assert first_difference(first, second, None) == expected


def test_with_a_tokenizer_a_difference_is_shown_as_text_too() -> None:
    shown: Callable[[int], list[str]] = lambda last: first_difference(  # noqa: E731
        [request(*range(1, 25), 25)], [request(*range(1, 12), last, 13)], decode
    )
    assert shown(26) == [
        "request 1 differs in its prompt from token 11 on (25 and 13 tokens)",
        "  both     'defghijk'",
        "           4='d' 5='e' 6='f' 7='g' 8='h' 9='i' 10='j' 11='k'",
        "  first    'lmnopqrstuvw' …",
        "           12='l' 13='m' 14='n' 15='o' 16='p' 17='q' 18='r' 19='s' 20='t' 21='u' 22='v' 23='w' …",
        "  second   'zm'",
        "           26='z' 13='m'",
    ]


def test_zero_and_minus_zero_are_shown_to_differ() -> None:
    params = [types_pb2.SamplingParams(temperature=value) for value in (0.0, -0.0)]
    first, second = (GoldenLine(Request(prompt_token_ids=[1], sampling_params=each)) for each in params)
    assert first_difference([first], [second], None) == [
        "request 1 differs in sampling_params.temperature: 0.0 and -0.0"
    ]
