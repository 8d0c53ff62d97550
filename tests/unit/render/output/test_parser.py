"""Reasoning and tool calls, against an oracle that sees the whole output."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triptych.v1 import render_pb2

from services.render.output.call_reader import MAX_HEADER_CHARS
from services.render.output.formats import FORMATS
from services.render.output.parser import OutputParser
from services.render.output.segments import CallPiece, Channel, Segment
from services.render.output.string_parameters import value_types
from services.render.output.tag_scanner import TagScanner
from tests.support.output_oracle import STRING_PARAMETERS, Call, Output, divided, outputs, read

V3 = render_pb2.PARSER_DEEPSEEK_V3
V3_1 = render_pb2.PARSER_DEEPSEEK_V3_1
R1 = render_pb2.PARSER_DEEPSEEK_R1
KIMI = render_pb2.PARSER_KIMI_K2
V3_2 = render_pb2.PARSER_DEEPSEEK_V3_2
GLM = render_pb2.PARSER_GLM_4_7
PARSERS = {"v3": V3, "v3.1": V3_1, "r1": R1, "kimi": KIMI, "v3.2": V3_2, "glm": GLM}

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEP, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def segments_of(
    parser: render_pb2.Parser.ValueType, pieces: list[str], in_reasoning: bool = False
) -> list[Segment]:
    """Tags are found in the text; each piece counts as a token."""
    output_format = FORMATS[parser]
    scanner = TagScanner(output_format.tags)
    output_parser = OutputParser(
        output_format,
        starts_in_reasoning=in_reasoning,
        call_id_prefix="made",
        value_types=value_types(STRING_PARAMETERS),
    )
    tokens = [Segment(piece, number) for number, piece in enumerate(pieces, start=1) if piece]
    scanned = [each for token in tokens for each in scanner.feed(token)] + scanner.flush()
    return [each for segment in scanned for each in output_parser.feed(segment)] + output_parser.flush()


def parse(parser: render_pb2.Parser.ValueType, pieces: list[str], in_reasoning: bool = False) -> Output:
    """The whole result for text in these pieces; tags are found in the text."""
    written = dict.fromkeys(Channel, "")
    calls: dict[int, Call] = {}
    done: list[Call] = []
    for segment in segments_of(parser, pieces, in_reasoning):
        if (piece := segment.call) is None:
            written[segment.channel] += segment.text
            continue
        call_id = "" if piece.call_id.startswith("made-") else piece.call_id
        call = calls.get(piece.call_index) or Call(piece.call_index, call_id, piece.name, "")
        calls[piece.call_index] = call._replace(arguments=call.arguments + segment.text)
        if piece.is_last:
            done.append(calls[piece.call_index])
    text = "".join(pieces)
    return Output(written[Channel.TEXT], written[Channel.REASONING], done, "", len(text))


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
@given(st.data(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_division_gives_the_result_of_the_whole_output(
    parser: render_pb2.Parser.ValueType, data: st.DataObject, in_reasoning: bool
) -> None:
    in_reasoning = in_reasoning and FORMATS[parser].has_reasoning
    text = data.draw(outputs(parser))
    expected = read(parser, text, in_reasoning=in_reasoning)
    assert parse(parser, data.draw(divided(text)), in_reasoning) == expected._replace(reasoning_spans=())


def test_v3_has_its_arguments_in_a_fenced_block() -> None:
    text = (
        f'Let me look.{BEGIN}{CALL}function{SEP}weather\n```json\n{{"city": "Bern"}}\n```{CALL_END}\n'
        f"{CALL}function{SEP}time\n```json\n{{}}\n```{CALL_END}{END}"
    )
    result = parse(V3, list(text))
    assert result.text == "Let me look."
    assert result.calls == [Call(0, "", "weather", '{"city": "Bern"}'), Call(1, "", "time", "{}")]


def test_v3_knows_no_reasoning() -> None:
    text = "<think>hm</think>yes"
    assert parse(V3, [text]).text == text


def test_v3_1_has_bare_arguments_and_begins_in_the_reasoning_that_the_prompt_opens() -> None:
    text = f'So, Bern.</think>I look.{BEGIN}{CALL}weather{SEP}{{"city": "Bern"}}{CALL_END}{END}'
    result = parse(V3_1, list(text), in_reasoning=True)
    assert (result.reasoning, result.text) == ("So, Bern.", "I look.")
    assert result.calls == [Call(0, "", "weather", '{"city": "Bern"}')]


def test_r1_opens_its_reasoning_itself_if_the_prompt_does_not() -> None:
    result = parse(R1, list("\n<think>\nhm\n</think>\n\nyes, <think> is a tag"))
    assert (result.reasoning, result.text) == ("\nhm\n", "\n\n\nyes, <think> is a tag")
    again = parse(R1, ["<think>", "hm</think>yes"], in_reasoning=True)
    assert (again.reasoning, again.text) == ("hm", "yes"), "opened by both"


def test_kimi_s_calls_have_ids_and_may_end_the_reasoning() -> None:
    header = "<|tool_call_begin|>functions.get.weather:7<|tool_call_argument_begin|>"
    call = f'{header}{{"city": "Bern"}}<|tool_call_end|>'
    text = f"I look.<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>Done."
    result = parse(KIMI, list(text), in_reasoning=True)
    assert (result.reasoning, result.text) == ("I look.", "Done.")
    assert result.calls == [Call(0, "functions.get.weather:7", "get.weather", '{"city": "Bern"}')]
    assert parse(KIMI, [call]).calls == result.calls, "the section's tags may be missing"


@pytest.mark.parametrize(
    ("call_id", "name"),
    [
        ("functions.f:0", "f"),
        ("functions.f", "f"),
        ("f:12", "f"),
        ("functions.a:b:3", "a:b"),
        ("call00003", None),
        ("call_2f:a", None),
        ("functions.", None),
        ("functions.:0", None),
        (":0", None),
    ],
)
def test_a_kimi_id_that_names_no_function_is_no_call(call_id: str, name: str | None) -> None:
    text = f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    result = parse(KIMI, list(text))
    if name is None:
        assert (result.text, result.calls) == (text, [])
    else:
        assert (result.text, result.calls) == ("", [Call(0, call_id, name, "{}")])


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (BEGIN, f"{END}\n", ""),
        (BEGIN, f"{END} \n\n", ""),
        (BEGIN, f"\n{END}\n\nDone. ", "Done. "),
        ("", "\n", ""),
        ("", "\n\nDone.\n", "Done.\n"),
        ("a\n\n", "", "a\n\n"),
        (f"a {BEGIN}\n{END}\n", "", f"a {BEGIN}\n{END}\n"),
    ],
)
def test_white_space_after_calls_belongs_to_them_and_none_before(before: str, after: str, text: str) -> None:
    result = parse(V3_1, list(f"{before}{CALL}f{SEP}{{}}{CALL_END}{after}"))
    assert (result.text, result.calls) == (text, [Call(0, "", "f", "{}")])


@pytest.mark.parametrize(
    ("parser", "call"),
    [
        (V3, f"{CALL}function{SEP}f\n```json\n{{}}\n```{CALL_END}"),
        (V3, f"{CALL}function{SEP}f\n```json\n```{CALL_END}"),
        (V3, f"{CALL}function{SEP}f\n```json\n\n```\n{CALL_END}"),
        (V3_1, f"{CALL}f{SEP}{CALL_END}"),
        (V3_1, f"{CALL}f{SEP}\n {CALL_END}"),
        (KIMI, "<|tool_call_begin|>f:0<|tool_call_argument_begin|> <|tool_call_end|>"),
    ],
)
def test_empty_arguments_are_an_empty_object(parser: render_pb2.Parser.ValueType, call: str) -> None:
    for pieces in ([call], list(call)):
        [read] = parse(parser, pieces).calls
        assert (read.name, read.arguments) == ("f", "{}")


@pytest.mark.parametrize(
    "text",
    [
        f"a{BEGIN}",
        f"a{BEGIN}\n",
        f"a{BEGIN}{END}b",
        f"a{BEGIN}b{END}",
        f"a{BEGIN}{CALL}wea",
        f"a{BEGIN}{CALL}weather{SEP}",
        f'a{BEGIN}{CALL}weather{SEP}{{"city": "Be',
        f"a{BEGIN}{CALL}{SEP}{{}}{CALL_END}{END}",
        f"a{BEGIN}{CALL}two words{SEP}{{}}{CALL_END}{END}",
        f"a{BEGIN}{CALL}weather{CALL_END}{END}",
        f"a{BEGIN}{CALL}weather{SEP}{{}}{SEP}{{}}{CALL_END}{END}",
        f"a{BEGIN}{CALL}weather{SEP}{{}}{END}",
        f"a{CALL_END}b{SEP}c{END}d</think>e",
        f"a{BEGIN}{CALL}{'x' * 2000}{SEP}{{}}{CALL_END}",
    ],
)
def test_a_call_cut_short_or_malformed_leaves_all_its_text(text: str) -> None:
    assert parse(V3_1, [text]) == parse(V3_1, list(text)) == Output(text, "", [], "", len(text))
    in_reasoning = parse(V3_1, list(text.replace("</think>", "")), in_reasoning=True)
    assert in_reasoning.reasoning == text.replace("</think>", ""), "where it stands"


def test_a_malformed_call_harms_none_of_its_neighbours() -> None:
    good = f"{CALL}f{SEP}{{}}{CALL_END}"
    bad = f"{CALL}no separator{CALL_END}"
    result = parse(V3_1, list(f"{BEGIN}{good}{bad}{good}{END}ok"))
    assert result.text == f"{bad}ok"
    assert [call.index for call in result.calls] == [0, 2]


def test_arguments_are_sent_as_they_come() -> None:
    text = f'{BEGIN}{CALL}function{SEP}f\n```json\n{{"a": 1}}\n```{CALL_END}'
    pieces = [(segment.text, segment.call) for segment in segments_of(V3, list(text)) if segment.call]
    assert pieces[0] == ("{", CallPiece(0, "made-0", "f", False))
    assert [text for text, _ in pieces if text] == ["{", '"', "a", '"', ":", " 1", "}"]
    assert pieces[-1] == ("", CallPiece(0, "", "", True))


@pytest.mark.parametrize("num_chars", [MAX_HEADER_CHARS - 1, MAX_HEADER_CHARS, MAX_HEADER_CHARS + 1])
def test_a_header_has_a_bound_that_does_not_depend_on_the_division(num_chars: int) -> None:
    text = f"{CALL}{'x' * num_chars}{SEP}{{}}{CALL_END}"
    whole = parse(V3_1, [text])
    assert whole == parse(V3_1, list(text))
    assert bool(whole.calls) == (num_chars <= MAX_HEADER_CHARS)


@pytest.mark.parametrize(
    ("parser", "begin"),
    [
        (V3, f"{CALL}function{SEP}"),
        (V3_1, CALL),
        (V3_1, f"{CALL}two words{SEP}"),
        (V3_2, "<｜DSML｜invoke"),
        (V3_2, '<｜DSML｜invoke name="f"><｜DSML｜parameter'),
        (V3_2, '<｜DSML｜invoke name="f">stray'),
        (GLM, "<tool_call>"),
        (GLM, "<tool_call>f<arg_key>"),
        (GLM, "<tool_call>f<arg_key>k</arg_key>stray"),
    ],
)
def test_what_is_buffered_for_a_header_is_bounded(parser: render_pb2.Parser.ValueType, begin: str) -> None:
    scanner = TagScanner(FORMATS[parser].tags)
    output_parser = OutputParser(
        FORMATS[parser], starts_in_reasoning=False, call_id_prefix="made", value_types={}
    )
    sent = ""
    for number, piece in enumerate([begin, *("x" * (MAX_HEADER_CHARS + 1))], start=1):
        for segment in scanner.feed(Segment(piece, number)):
            sent += "".join(each.text for each in output_parser.feed(segment) if each.call is None)
    assert sent.endswith("x" * MAX_HEADER_CHARS)
    assert output_parser.oldest is None


def test_white_space_of_a_header_that_is_too_long_is_text_also_after_a_call() -> None:
    good, header = f"{CALL}f{SEP}{{}}{CALL_END}", f"{CALL}{'x' * MAX_HEADER_CHARS}"
    for rest in ([" y"], [" ", "y"]):
        result = parse(V3_1, [good, header, *rest])
        assert (result.text, len(result.calls)) == (f"{header} y", 1)


@given(st.lists(st.text("<a>b", max_size=6), max_size=8))
@settings(deadline=None)
def test_the_scanner_loses_nothing_and_buffers_only_what_may_become_a_tag(pieces: list[str]) -> None:
    scanner = TagScanner(["<a>", "<bb>"])
    so_far, seen = "", ""
    for piece in pieces:
        so_far += piece
        seen += "".join(segment.text for segment in scanner.feed(Segment(piece, 1)))
        assert so_far.startswith(seen)
        assert so_far[len(seen) :] in ("", "<", "<a", "<b", "<bb")
    assert seen + "".join(segment.text for segment in scanner.flush()) == so_far
