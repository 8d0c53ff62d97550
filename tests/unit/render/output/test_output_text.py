"""One output of a request: parser, stop strings and tokens together, against an oracle that sees it whole."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as TokenizerFile
from triptych.v1 import render_pb2, types_pb2

from services.render.output.derenderer import Derenderer
from services.render.output.formats import FORMATS
from services.render.output.output_text import OutputTextFactory
from services.render.tokenizer.control_tokens import Piece
from services.render.tokenizer.tokenizer import Tokenizer
from tests.support.fake_scheduler import admitted, chunk, finished
from tests.support.output_oracle import STRING_PARAMETERS, divided, outputs, read
from tests.support.render_models import DEMO_MODEL, deepseek_tokenizer_, demo_tokenizer
from tests.unit.render.output.test_detokenizer import sentencepiece_like

V3_1 = render_pb2.PARSER_DEEPSEEK_V3_1
KIMI = render_pb2.PARSER_KIMI_K2
V3_2 = render_pb2.PARSER_DEEPSEEK_V3_2
GLM = render_pb2.PARSER_GLM_4_7
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEP, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
STOPS = st.lists(
    st.sampled_from(
        ["STOP", "ST", "TO", "a", "ab", "ab ", " ", "\n", "b S", "\n\n", "<", "</think>", "你", "{}"]
    ),
    max_size=4,
)


@cache
def tagged_tokenizer(parser: render_pb2.Parser.ValueType) -> Tokenizer:
    """Every tag of the format is a special token, which is left out of the text."""
    file = TokenizerFile.from_file(str(DEMO_MODEL / "tokenizer.json"))
    file.add_special_tokens(sorted(FORMATS[parser].tags))
    with TemporaryDirectory() as folder:
        file.save(f"{folder}/tokenizer.json")
        return Tokenizer(Path(folder) / "tokenizer.json")


class Result:
    """One output's events, joined as a client joins them."""

    def __init__(self, events: list[render_pb2.TextEvent]) -> None:
        deltas = [event.delta for event in events if event.HasField("delta")]
        self.text = "".join(delta.text for delta in deltas)
        self.reasoning = "".join(delta.reasoning_content for delta in deltas)
        self.token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
        self.logprob_ids = [logprobs.token.token_id for delta in deltas for logprobs in delta.logprobs]
        self.pieces: dict[int, render_pb2.ToolCall] = {}
        for piece in (piece for delta in deltas for piece in delta.tool_calls):
            call = self.pieces.setdefault(piece.index, render_pb2.ToolCall(id=piece.id, name=piece.name))
            call.arguments_json += piece.arguments_json
        [self.end] = [event.finished for event in events if event.HasField("finished")]


def derender(tokenizer: Tokenizer, chunks: list[list[int]], reason: Any = None, **text_params: Any) -> Result:
    """All of an output that comes in these chunks."""
    derenderer = Derenderer(_factory(tokenizer), render_pb2.TextParams(**text_params))
    events = [admitted(), *(chunk(each, with_logprobs=True) for each in chunks)]
    events.append(finished(types_pb2.FINISH_REASON_STOP if reason is None else reason))
    return Result([text_event for event in events for text_event in derenderer.push(event)])


@cache
def _factory(tokenizer: Tokenizer) -> OutputTextFactory:
    return OutputTextFactory(tokenizer)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False, field="text")


@pytest.mark.parametrize("parser", [render_pb2.PARSER_UNSPECIFIED, *FORMATS])
@pytest.mark.parametrize("tokenizer", [demo_tokenizer, deepseek_tokenizer_])
@given(data=st.data(), stop=STOPS, include=st.booleans(), min_tokens=st.sampled_from([0, 0, 3, 9]))
@settings(max_examples=50, deadline=None)
def test_any_division_of_the_tokens_gives_the_result_of_the_whole_output(
    parser: Any, tokenizer: Any, data: st.DataObject, stop: list[str], include: bool, min_tokens: int
) -> None:
    stop_in_reasoning = data.draw(st.booleans())
    in_reasoning = parser in FORMATS and FORMATS[parser].has_reasoning and data.draw(st.booleans())
    text = data.draw(outputs(parser or KIMI))
    token_ids = ids_of(tokenizer(), text)
    lengths = [
        len(tokenizer().decode(token_ids[:count], skip_special_tokens=True).rstrip("\ufffd"))
        for count in range(len(token_ids) + 1)
    ]
    result = derender(
        tokenizer(), data.draw(divided(token_ids)), parser=parser, starts_in_reasoning=in_reasoning,
        stop=stop, include_stop_in_output=include, min_tokens=min_tokens, stop_in_reasoning=stop_in_reasoning,
        string_parameters=STRING_PARAMETERS if parser == GLM else (),
    )  # fmt: skip

    def token_of(end: int) -> int:
        return next(count for count, length in enumerate(lengths) if length >= end)

    def is_late_enough(end: int) -> bool:
        return token_of(end) >= min_tokens

    expected = read(
        parser, text, in_reasoning=in_reasoning, stop=stop, include=include,
        stop_in_reasoning=stop_in_reasoning, may_stop=is_late_enough,
    )  # fmt: skip
    assert (result.text, result.reasoning) == (expected.text, expected.reasoning)
    assert result.end.stop_string == expected.stop
    num_tokens = token_of(expected.end) if expected.stop else len(token_ids)
    assert result.token_ids == result.logprob_ids == token_ids[:num_tokens]
    assert result.end.usage.completion_tokens == num_tokens
    of_reasoning = {token_of(end + 1) for span in expected.reasoning_spans for end in range(*span)}
    # Tokens without text count with the next one.
    num_before = {count: lengths.index(lengths[count - 1]) for count in of_reasoning}
    assert result.end.usage.reasoning_tokens == sum(count - num_before[count] for count in of_reasoning)
    assert [(call.name, call.arguments_json) for call in result.end.tool_calls] == [
        (call.name, call.arguments) for call in expected.calls
    ]
    assert [result.pieces[call.index] for call in expected.calls] == list(result.end.tool_calls)


@given(st.data(), st.sampled_from(list(FORMATS)))
@settings(max_examples=150, deadline=None)
def test_tags_that_are_left_out_of_the_text_are_still_seen(data: st.DataObject, parser: Any) -> None:
    text = data.draw(outputs(parser))
    tokenizer = tagged_tokenizer(parser)
    token_ids = ids_of(tokenizer, text)
    chunks = data.draw(divided(token_ids))
    shown = derender(tokenizer, chunks, parser=parser, skip_special_tokens=False)
    hidden = derender(tokenizer, chunks, parser=parser)
    assert hidden.end.tool_calls == shown.end.tool_calls
    assert hidden.token_ids == shown.token_ids == token_ids
    without_tags = shown.text, shown.reasoning
    for tag in FORMATS[parser].tags:
        without_tags = without_tags[0].replace(tag, ""), without_tags[1].replace(tag, "")
    assert (hidden.text, hidden.reasoning) == without_tags


def test_text_that_only_spells_a_tag_is_text() -> None:
    tokenizer = deepseek_tokenizer_()
    text = f"</think>{BEGIN}{CALL}f{SEP}{{}}{CALL_END}{END}"
    spelled = [token_id for char in text for token_id in ids_of(tokenizer, char)]
    result = derender(tokenizer, [spelled], parser=V3_1, starts_in_reasoning=True)
    assert result.reasoning == text
    taken = derender(tokenizer, [ids_of(tokenizer, text)], parser=V3_1, starts_in_reasoning=True)
    assert (taken.reasoning, taken.text, len(taken.end.tool_calls)) == ("", "", 1)


def test_calls_without_ids_get_some_that_name_generation_output_and_call() -> None:
    call = f"{CALL}f{SEP}{{}}{CALL_END}"
    result = derender(demo_tokenizer(), [ids_of(demo_tokenizer(), f"{BEGIN}{call}{call}{END}")], parser=V3_1)
    assert [call.id for call in result.end.tool_calls] == ["call-generation-1-0-0", "call-generation-1-0-1"]


@pytest.mark.parametrize(
    ("given_reason", "expected"),
    [("STOP", "TOOL_CALLS"), ("LENGTH", "LENGTH"), ("ABORT", "ABORT")],
)
def test_calls_change_the_reason_of_a_stop_only(given_reason: str, expected: str) -> None:
    token_ids = ids_of(demo_tokenizer(), f"{BEGIN}{CALL}f{SEP}{{}}{CALL_END}{END}")
    reason = types_pb2.FinishReason.Value(f"FINISH_REASON_{given_reason}")
    result = derender(demo_tokenizer(), [token_ids], reason, parser=V3_1)
    assert result.end.finish_reason == types_pb2.FinishReason.Value(f"FINISH_REASON_{expected}")


def test_a_call_cut_short_is_sent_as_text_after_its_pieces_and_is_no_call() -> None:
    text = f'ok{BEGIN}{CALL}f{SEP}{{"a": 1'
    result = derender(demo_tokenizer(), [ids_of(demo_tokenizer(), text)], parser=V3_1)
    assert result.text == text
    assert result.pieces[0].arguments_json == '{"a": 1'
    assert not result.end.tool_calls
    assert result.end.finish_reason == types_pb2.FINISH_REASON_STOP


def test_a_stop_string_neither_reaches_over_a_tag_nor_into_a_call() -> None:
    text = f"ST</think>OP{BEGIN}{CALL}STOP{SEP}STOP{CALL_END}{END}"
    token_ids = ids_of(demo_tokenizer(), text)
    result = derender(
        demo_tokenizer(), [token_ids], parser=V3_1, starts_in_reasoning=True, stop=["STOP"],
        stop_in_reasoning=True,
    )  # fmt: skip
    assert (result.reasoning, result.text, result.end.stop_string) == ("ST", "OP", "")
    assert [(call.name, call.arguments_json) for call in result.end.tool_calls] == [("STOP", "STOP")]


@pytest.mark.parametrize(
    "text",
    [
        f"ST{BEGIN}{CALL}f{SEP}{{}}{CALL_END}{END}OP",
        f"ST{CALL}f{SEP}{{}}{CALL_END}OP",
        f"ST{BEGIN}OP",
        f"ST{BEGIN}{CALL}STOP{CALL_END}{END}OP",
    ],
)
def test_a_stop_string_does_not_reach_over_a_call_whether_it_is_one_or_not(text: str) -> None:
    result = derender(demo_tokenizer(), [ids_of(demo_tokenizer(), text)], parser=V3_1, stop=["STOP"])
    assert result.end.stop_string == ""
    assert result.text.startswith("ST")
    assert result.text.endswith("OP")


def test_a_stop_string_does_not_reach_over_a_tag_within_the_reasoning() -> None:
    token_ids = ids_of(demo_tokenizer(), "\n<think>\n")
    result = derender(
        demo_tokenizer(), [token_ids], parser=V3_1, starts_in_reasoning=True, stop=["\n\n"],
        stop_in_reasoning=True,
    )  # fmt: skip
    assert (result.reasoning, result.end.stop_string) == ("\n\n", "")


@pytest.mark.parametrize(
    ("text_params", "reasoning", "text", "stop_string"),
    [
        ({}, "a STOP b", "c ", "STOP"),
        ({"stop_in_reasoning": True}, "a ", "", "STOP"),
        ({"parser": render_pb2.PARSER_UNSPECIFIED, "starts_in_reasoning": False}, "", "a ", "STOP"),
    ],
    ids=["text alone", "reasoning too", "no parser"],
)
def test_stop_strings_end_the_text_and_the_reasoning_only_where_asked_for(
    text_params: dict[str, Any], reasoning: str, text: str, stop_string: str
) -> None:
    token_ids = ids_of(demo_tokenizer(), "a STOP b</think>c STOP d")
    given_params = {"parser": V3_1, "starts_in_reasoning": True, "stop": ["STOP"], **text_params}
    result = derender(demo_tokenizer(), [token_ids], **given_params)
    assert (result.reasoning, result.text, result.end.stop_string) == (reasoning, text, stop_string)


def test_reasoning_tokens_are_those_of_reasoning_and_of_its_tags() -> None:
    tokenizer = deepseek_tokenizer_()
    for text, expected in {
        "<think>So, Bern.</think>Hello you": len(ids_of(tokenizer, "<think>So, Bern.</think>")),
        "<think></think>Hello": 2,
        "\n<think>So": 2,
        "Hello </think> you": 0,
        f"<think>So{BEGIN}{CALL}f{SEP}{{}}{CALL_END}{END}": 2,
        f"<think>So{BEGIN}{CALL}f{SEP}{{}}": 7,
    }.items():
        for chunks in ([ids_of(tokenizer, text)], [[each] for each in ids_of(tokenizer, text)]):
            result = derender(tokenizer, chunks, parser=V3_1)
            assert result.end.usage.reasoning_tokens == expected, text
            assert derender(tokenizer, chunks).end.usage.reasoning_tokens == 0, "without a parser"


def test_parts_of_a_character_count_as_the_whole_one_does() -> None:
    tokenizer = demo_tokenizer()
    reasoning = ids_of(tokenizer, "👍")
    token_ids = [*reasoning, *ids_of(tokenizer, "</think>"), *ids_of(tokenizer, "👍")]
    result = derender(tokenizer, [token_ids], parser=V3_1, starts_in_reasoning=True)
    num_tag_tokens = len(ids_of(tokenizer, "</think>"))
    assert len(reasoning) > 1
    assert result.end.usage.reasoning_tokens == len(reasoning) + num_tag_tokens


def test_a_token_waits_until_it_is_known_what_its_text_is() -> None:
    tokenizer = deepseek_tokenizer_()
    derenderer = Derenderer(_factory(tokenizer), render_pb2.TextParams(parser=V3_1, stop=["STOP"]))
    derenderer.push(admitted())
    sent = []
    for text in ["a", " ST", "b", BEGIN, CALL, "f", SEP, "{", "}", CALL_END, END, "c"]:
        [token_id] = ids_of(tokenizer, text)
        deltas = [event.delta for event in derenderer.push(chunk([token_id]))]
        sent.append([tokenizer.token(each) for delta in deltas for each in delta.token_ids])
    # The call's name is the first thing that is sent of it; the tags after it go with what comes next.
    assert sent == [["a"], [], ["ĠST", "b"], [], [], [], [BEGIN, CALL, "f", SEP], ["{"], ["}"], [], [],
                    [CALL_END, END, "c"]]  # fmt: skip


def test_the_tokens_of_what_may_be_a_call_wait_though_others_of_the_chunk_are_sent() -> None:
    tokenizer = deepseek_tokenizer_()
    derenderer = Derenderer(_factory(tokenizer), render_pb2.TextParams(parser=V3_1))
    derenderer.push(admitted())
    token_ids = ids_of(tokenizer, f"a{BEGIN}{CALL}f")
    [event] = derenderer.push(chunk(token_ids))
    assert (event.delta.text, list(event.delta.token_ids)) == ("a", token_ids[:1])
    event, _ = derenderer.push(finished())
    assert list(event.delta.token_ids) == token_ids[1:]


@pytest.mark.parametrize(
    ("tokenizer", "prefix", "token", "text_params"),
    [
        (demo_tokenizer, "", "words ", {}),
        (deepseek_tokenizer_, f"{BEGIN}{CALL}f{SEP}{{", " " * 128, {"parser": V3_1}),
        (deepseek_tokenizer_, f"{BEGIN}{CALL}f{SEP}", " " * 128, {"parser": V3_1}),
        (demo_tokenizer, BEGIN, "\n", {"parser": V3_1}),
        (demo_tokenizer, f"{BEGIN}{CALL}f{SEP}{{}}{CALL_END}{END}", "\n", {"parser": V3_1}),
        (demo_tokenizer, "<tool_call>f<arg_key>k</arg_key><arg_value>", "words ", {"parser": GLM}),
        (demo_tokenizer, "<tool_call>f<arg_key>k</arg_key><arg_value>", "[1,", {"parser": GLM}),
        (demo_tokenizer, "<tool_call>f", "\n", {"parser": GLM}),
        (demo_tokenizer, '<｜DSML｜invoke name="f">', "\n", {"parser": V3_2}),
        (demo_tokenizer, '<｜DSML｜invoke name="f">stray', "words", {"parser": V3_2}),
        (demo_tokenizer, "", "<", {"parser": V3_1}),
        (demo_tokenizer, "", "=", {"stop": ["=" * (20 + count) + "x" for count in range(80)]}),
        (demo_tokenizer, "", "stop", {"stop": [f"stop{count}" for count in range(128)]}),
        (sentencepiece_like, "", "<0xE4>", {}),
        (sentencepiece_like, "", "\ufffd", {}),
    ],
)
def test_a_large_event_takes_time_in_proportion(
    tokenizer: Callable[[], Tokenizer], prefix: str, token: str, text_params: dict[str, Any]
) -> None:
    prefix_ids = tokenizer().encode_pieces([Piece(prefix, True)], field="prefix")
    vocabulary = {tokenizer().token(each): each for each in range(1024)}
    token_ids = [vocabulary[token]] if token in vocabulary else ids_of(tokenizer(), token)
    start = thread_time()
    derender(tokenizer(), [prefix_ids + token_ids * 20_000], **text_params)
    # A second of processor time and less; minutes if each token cost as much as there are tokens.
    assert thread_time() - start < 10


def test_a_large_chunk_keeps_its_tokens_and_calls() -> None:
    token_ids = ids_of(
        demo_tokenizer(), f"{BEGIN}{CALL}f{SEP}{{{'a' * 2000}}}{CALL_END}{END} words and words" * 20
    )
    result = derender(demo_tokenizer(), [token_ids], parser=V3_1, stop=["never"])
    assert result.token_ids == token_ids
    assert len(result.end.tool_calls) == 20
