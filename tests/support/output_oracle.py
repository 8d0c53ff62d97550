"""Reads a whole output at once: what parser, stop strings and deltas must come to, however the output comes.

Written over positions in the complete text, and independent of the parser's states: spans of the text, each
with what it is.
"""

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st
from triptych.v1 import render_pb2

from services.render.output.formats import FORMATS


class Span(NamedTuple):
    """A stretch of the output. kind: text, reasoning, literal text, literal reasoning, tag (around
    reasoning), taken, call."""

    start: int
    end: int
    kind: str


class Call(NamedTuple):
    """A complete call."""

    index: int  # type: ignore[assignment]
    call_id: str
    name: str
    arguments: str


class Output(NamedTuple):
    """The whole output, read."""

    text: str
    reasoning: str
    calls: list[Call]
    stop: str
    # Characters of the output up to the end of the match; all if there is none.
    end: int
    # Where the characters of reasoning and of the tags around it are, of those.
    reasoning_spans: tuple[tuple[int, int], ...] = ()


def read(
    parser: render_pb2.Parser.ValueType,
    text: str,
    *,
    in_reasoning: bool = False,
    stop: Sequence[str] = (),
    include: bool = False,
    stop_in_reasoning: bool = False,
    may_stop: Callable[[int], bool] = lambda _end: True,
) -> Output:
    """The result for a complete output. may_stop: whether a match that ends there counts."""
    if parser not in FORMATS:
        spans, calls = [Span(0, len(text), "reasoning" if in_reasoning else "text")], []
    else:
        reader = _Reader(parser, text, in_reasoning)
        spans, calls = reader.spans, reader.calls
    output = _cut(
        text, spans, calls, stop, include, {"text", "reasoning"} if stop_in_reasoning else {"text"}, may_stop
    )
    spans_ = [each for each in spans if each.kind in ("reasoning", "literal reasoning", "tag")]
    return output._replace(
        reasoning_spans=tuple(
            (each.start, min(each.end, output.end)) for each in spans_ if each.start < output.end
        )
    )


def _cut(
    text: str,
    spans: list[Span],
    calls: list[tuple[int, Call]],
    stop: Sequence[str],
    include: bool,
    searched: set[str],
    may_stop: Callable[[int], bool],
) -> Output:
    """Looks for a stop string in each unbroken run of text or reasoning, in order."""
    written = {"text": "", "reasoning": ""}
    run_start = 0
    for index, span in enumerate(spans):
        if index and (spans[index - 1].kind != span.kind or "literal" in span.kind):
            run_start = span.start
        if span.kind in searched:
            for end in range(span.start + 1, span.end + 1):
                found = [each for each in stop if text[run_start:end].endswith(each)]
                if found and may_stop(end):
                    longest = max(found, key=len)
                    kept = text[run_start:end] if include else text[run_start : end - len(longest)]
                    before = sum(each.end - each.start for each in spans[:index] if each.start >= run_start)
                    written[span.kind] = written[span.kind][: len(written[span.kind]) - before] + kept
                    done = [call for call_end, call in calls if call_end <= end]
                    return Output(written["text"], written["reasoning"], done, longest, end)
        channel = span.kind.removeprefix("literal ")
        if channel in written:
            written[channel] += text[span.start : span.end]
    return Output(written["text"], written["reasoning"], [call for _, call in calls], "", len(text))


class _Reader:
    """Spans and calls of one text in one format."""

    def __init__(self, parser: render_pb2.Parser.ValueType, text: str, in_reasoning: bool) -> None:
        self._parser = parser
        self._format = output_format = FORMATS[parser]
        self._text = text
        self._channel = "reasoning" if in_reasoning else "text"
        self._num_calls = 0
        self.spans: list[Span] = []
        # With where each ends.
        self.calls: list[tuple[int, Call]] = []
        self._tag = re.compile("|".join(map(re.escape, output_format.tags)))
        self._call, self._broken = _call_patterns(parser)
        self._read()

    def _read(self) -> None:
        at = 0
        has_begun = False
        f = self._format
        while at < len(self._text):
            match = self._tag.match(self._text, at)
            if match is None:
                following = self._tag.search(self._text, at)
                end = following.start() if following else len(self._text)
                has_begun = has_begun or bool(self._text[at:end].strip())
                self._add(at, end, self._channel)
            elif match[0] in (f.section_begin, f.call_begin):
                has_begun = True
                end = self._read_section(at)
            else:
                end = match.end()
                if match[0] == f.reasoning_begin and not has_begun:
                    self._channel = "reasoning"
                    self._add(at, end, "tag")
                elif match[0] == f.reasoning_end and self._channel == "reasoning":
                    self._channel = "text"
                    self._add(at, end, "tag")
                else:
                    self._add(at, end, self._channel)
                has_begun = True
            at = end

    def _read_section(self, start: int) -> int:
        """Where the section ends."""
        f, text = self._format, self._text
        kind = f"literal {self._channel}"
        at = start
        if f.section_begin and text.startswith(f.section_begin, start):
            at += len(f.section_begin)
        while True:
            at = self._skip_space(at)
            if f.section_end and text.startswith(f.section_end, at):
                at += len(f.section_end)
                end = self._skip_space(at) if kind == "taken" else at
                self._add(start, end, kind)
                return end
            if not text.startswith(f.call_begin, at):
                self._add(start, at, kind)
                return at
            match = self._call.match(text, at)
            call = self._read_call(match) if match else None
            if match and call:
                self.calls.append((match.end(), call))
                self._add(start, match.end(), "call")
                self._channel, kind = "text", "taken"
                start = at = match.end()
            else:
                broken = self._broken.match(text, at)
                assert broken
                self._add(start, broken.end(), f"literal {self._channel}")
                start = at = broken.end()
            self._num_calls += 1

    def _skip_space(self, start: int) -> int:
        return len(self._text) - len(self._text[start:].lstrip())

    def _read_call(self, match: re.Match[str]) -> Call | None:
        if self._parser in _PARAMETERS:
            values = [
                f"{json.dumps(each['key'].strip(), ensure_ascii=False)}: {_value(match['name'], each)}"
                for each in re.finditer(_PARAMETERS[self._parser], match["parameters"], re.DOTALL)
            ]
            return Call(self._num_calls, "", match["name"], f"{{{', '.join(values)}}}")
        before, after = match["before"].strip(), match["after"]
        if self._parser in (render_pb2.PARSER_DEEPSEEK_V3, render_pb2.PARSER_DEEPSEEK_R1):
            fenced = re.fullmatch(r"\s*([^\s`]+)\s*```json\s*(\S.*)", after, re.DOTALL)
            if not fenced:
                return None
            arguments = re.sub(r"\s*(```)?\s*\Z", "", fenced[2]) if fenced[2].strip() != "```" else ""
            return Call(self._num_calls, "", fenced[1], arguments or "{}")
        if not before or re.search(r"\s", before):
            return None
        call_id, name = "", before
        if self._parser == render_pb2.PARSER_KIMI_K2:
            call_id, name = before, re.sub(r":\d+\Z", "", before).removeprefix("functions.")
            if name in ("", call_id):
                return None
        return Call(self._num_calls, call_id, name, after.strip() or "{}")

    def _add(self, start: int, end: int, kind: str) -> None:
        if start < end:
            self.spans.append(Span(start, end, kind))


_VALUES = ["Oslo", "null", " 3", '{"a": [1, "b"]}', "", '"x"', 'a "b"\\\n', "你", "NaN", " "]

# For which the tools of a request declare strings.
STRING_PARAMETERS = [
    render_pb2.StringParameters(function="f", names=["city"], nullable_names=["note"]),
]

# One parameter of a call, of the formats that write no JSON.
_PARAMETERS = {
    render_pb2.PARSER_DEEPSEEK_V3_2: (
        r'<｜DSML｜parameter\s+name="(?P<key>[^"]*)"\s+string="(?P<string>true|false)"\s*>'
        r"(?P<value>(?:(?!</?｜DSML｜).)*)</｜DSML｜parameter>\s*"
    ),
    render_pb2.PARSER_GLM_4_7: (
        r"<arg_key>(?P<key>(?:(?!</?arg_|</?tool_call>).)*)</arg_key>\s*"
        r"<arg_value>(?P<value>(?:(?!</?arg_|</?tool_call>).)*)</arg_value>\s*"
    ),
}


def _value(function: str, parameter: re.Match[str]) -> str:
    text = parameter["value"]
    if "string" in parameter.re.groupindex:
        kind = "string" if parameter["string"] == "true" else "JSON"
    else:
        kinds = {("f", "city"): "string", ("f", "note"): "nullable"}
        kind = kinds.get((function, parameter["key"].strip()), "JSON")
    if kind == "nullable" and text.strip() == "null":
        return "null"
    if kind == "JSON":
        with contextlib.suppress(ValueError):
            json.loads(text, parse_constant=int)  # NaN is no JSON
            return text.strip()
    return json.dumps(text, ensure_ascii=False)


def _call_patterns(parser: render_pb2.Parser.ValueType) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A whole call, and what is read of an abandoned one: up to the first tag that does not belong there, or
    with it if it ends a call."""
    f = FORMATS[parser]
    call_tags = "|".join(re.escape(tag) for tag in f.tags if "think" not in tag)
    text = f"(?:(?!{call_tags}).)*"
    begin, end = re.escape(f.call_begin), re.escape(f.call_end)
    if parser not in _PARAMETERS:
        separator = re.escape(f.call_tags[0])
        whole = f"{begin}(?P<before>{text}){separator}(?P<after>{text}){end}"
        broken = f"{begin}{text}(?:{separator}{text})?(?:{end})?"
        return re.compile(whole, re.DOTALL), re.compile(broken, re.DOTALL)
    parameter = re.sub(r"\?P<\w+>", "?:", _PARAMETERS[parser])
    if parser == render_pb2.PARSER_DEEPSEEK_V3_2:
        name = rf'\s+name="(?P<name>(?:(?!{call_tags})[^"])+)"\s*>\s*'
        partial = f"<｜DSML｜parameter{text}"
    else:
        name = rf"\s*(?P<name>(?:(?!{call_tags})\S)+)\s*"
        partial = rf"<arg_key>{text}(?:</arg_key>\s*(?:<arg_value>{text})?)?"
    whole = f"{begin}{name}(?P<parameters>(?:{parameter})*){end}"
    broken = f"{begin}(?:{name}(?:{parameter})*(?:{partial})?)?{text}(?:{end})?"
    return re.compile(whole, re.DOTALL), re.compile(broken, re.DOTALL)


_FRAGMENTS = [
    "a", "ab ", " ", "\n", "S", "ST", "STOP", "OP", "<", "<｜tool", "<|tool_call", "</th", "你", "{}",
    '{"a": "b c"}', "\n```json\n", "\n```", "```", "f", "get weather", "function",
    ' name="f">', ' string="true">', "functions.f:0", "functions.a.b:12", "call00003", "f:3",
]  # fmt: skip


def outputs(parser: render_pb2.Parser.ValueType) -> st.SearchStrategy[str]:
    """Outputs in a parser's format, whole, broken and mixed up."""
    f = FORMATS[parser]
    calls = st.lists(_calls(parser), min_size=1, max_size=3).map("\n".join)
    section = calls.map(lambda text: f"{f.section_begin or ''}{text}{f.section_end or ''}")
    tags = st.sampled_from([*f.tags, f.reasoning_begin, f.reasoning_end])
    fragments = st.sampled_from(_FRAGMENTS)
    return st.lists(st.one_of(fragments, tags, calls, section, fragments), max_size=9).map("".join)


def _calls(parser: render_pb2.Parser.ValueType) -> st.SearchStrategy[str]:
    f = FORMATS[parser]
    if parser in _PARAMETERS:
        key, value = st.sampled_from(["city", "note", "days", "a b"]), st.sampled_from(_VALUES)
        if parser == render_pb2.PARSER_GLM_4_7:
            written = st.tuples(key, st.sampled_from(["", "\n"]), value).map(
                lambda each: f"<arg_key>{each[0]}</arg_key>{each[1]}<arg_value>{each[2]}</arg_value>{each[1]}"
            )
            name = st.sampled_from(["f", "g\n"])
        else:
            written = st.tuples(key, st.sampled_from(["true", "false"]), value).map(
                lambda each: (
                    f'\n<｜DSML｜parameter name="{each[0]}" string="{each[1]}">{each[2]}</｜DSML｜parameter>'
                )
            )
            name = st.sampled_from([' name="f">', ' name="g">\n'])
        parameters = st.lists(written, max_size=3).map("".join)
        return st.tuples(name, parameters).map(lambda each: f"{f.call_begin}{''.join(each)}{f.call_end}")
    name_, before, after = {
        render_pb2.PARSER_DEEPSEEK_V3_1: ("f", "", "\n"),
        render_pb2.PARSER_KIMI_K2: ("functions.f:3", "", "\n"),
    }.get(parser, ("function", "f\n```json\n", "\n```"))
    arguments = st.sampled_from(["{}", '{"city": "Bern"}', "", " { not JSON", '{"a": "\\n```"}'])
    return arguments.map(
        lambda text: f"{f.call_begin}{name_}{f.call_tags[0]}{before}{text}{after}{f.call_end}"
    )


@st.composite
def divided(draw: st.DrawFn, whole: Sequence[Any]) -> list[Any]:
    """A text or a list in pieces of random sizes, often of one."""
    if draw(st.booleans()):
        return [whole[index : index + 1] for index in range(len(whole))]
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(whole) - 1)), max_size=8)))
    pieces = zip([0, *cuts], [*cuts, len(whole)], strict=True)
    return [whole[start:end] for start, end in pieces if start < end]
