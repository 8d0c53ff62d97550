"""How families of models write reasoning and tool calls: their tags, and how a call's name is found.

The parser reads any of them with the same states (parser.py); only what is here differs.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from triptych.v1 import render_pb2

from services.render.output.call_reader import CallHeader, CallReader, JsonCallReader
from services.render.output.markup_calls import DsmlCallReader, GlmCallReader, ValueTypes


class ParserName(StrEnum):
    """Values of --parser."""

    AUTO = "auto"
    NONE = "none"
    DEEPSEEK_V3 = "deepseek-v3"
    DEEPSEEK_V3_1 = "deepseek-v3.1"
    DEEPSEEK_R1 = "deepseek-r1"
    KIMI_K2 = "kimi-k2"
    DEEPSEEK_V3_2 = "deepseek-v3.2"
    GLM_4_7 = "glm-4.7"


PARSERS: dict[ParserName, render_pb2.Parser.ValueType] = {
    ParserName.NONE: render_pb2.PARSER_UNSPECIFIED,
    ParserName.DEEPSEEK_V3: render_pb2.PARSER_DEEPSEEK_V3,
    ParserName.DEEPSEEK_V3_1: render_pb2.PARSER_DEEPSEEK_V3_1,
    ParserName.DEEPSEEK_R1: render_pb2.PARSER_DEEPSEEK_R1,
    ParserName.KIMI_K2: render_pb2.PARSER_KIMI_K2,
    ParserName.DEEPSEEK_V3_2: render_pb2.PARSER_DEEPSEEK_V3_2,
    ParserName.GLM_4_7: render_pb2.PARSER_GLM_4_7,
}


@dataclass(frozen=True)
class OutputFormat:
    """One format. Tags are texts; each is one token where the tokenizer has it so."""

    # None: calls stand by themselves.
    section_begin: str | None
    section_end: str | None
    call_begin: str
    # Those within a call.
    call_tags: tuple[str, ...]
    call_end: str
    # Makes the reader of one call.
    open_call: Callable[[ValueTypes], CallReader]
    has_reasoning: bool
    # After the last of these in a prompt, the assistant's own text begins.
    turn_tags: tuple[str, ...]
    # It does not tell strings from JSON: the tools' schemas must.
    needs_value_types: bool = False
    reasoning_begin: str = "<think>"
    reasoning_end: str = "</think>"

    @property
    def tags(self) -> list[str]:
        """All that the parser looks for. None is the beginning of another."""
        section = [tag for tag in (self.section_begin, self.section_end) if tag is not None]
        calls = [*section, self.call_begin, *self.call_tags, self.call_end]
        return [*calls, self.reasoning_begin, self.reasoning_end] if self.has_reasoning else calls

    def ends_in_reasoning(self, prompt_text: str) -> bool:
        """The prompt leaves reasoning open. Only the assistant's own last words are looked at: other
        messages may hold the same tags."""
        if not self.has_reasoning:
            return False
        starts = [prompt_text.rfind(tag) + len(tag) for tag in self.turn_tags if tag in prompt_text]
        own = prompt_text[max(starts, default=0) :]
        return own.rfind(self.reasoning_begin) > own.rfind(self.reasoning_end)


# The name on a line, then the fence. The arguments' first character must be there too, so that white space
# before it is skipped the same way however the text arrives.
_NAME_AND_FENCE = re.compile(r"\s*(?P<name>[^\s`]+)\s*```json\s*(?=\S)")
_KIMI_SEPARATOR = "<|tool_call_argument_begin|>"
_KIMI_COUNT = re.compile(r":\d+\Z")
_ONE_WORD = re.compile(r"\s*(?P<word>\S+)\s*")


def _read_fenced(_kind: str, text: str) -> CallHeader | None:
    match = _NAME_AND_FENCE.match(text)
    return CallHeader("", match["name"], match.end()) if match else None


def _read_bare(name: str, _text: str) -> CallHeader | None:
    match = _ONE_WORD.fullmatch(name)
    return CallHeader("", match["word"], 0) if match else None


def _read_kimi(call_id: str, _text: str) -> CallHeader | None:
    """functions.get_weather:0, in which the model counts its calls. One of prefix and count may be missing;
    without both it is an id in another style, which names no function."""
    match = _ONE_WORD.fullmatch(call_id)
    if match is None:
        return None
    name = _KIMI_COUNT.sub("", match["word"]).removeprefix("functions.")
    return CallHeader(match["word"], name, 0) if name not in ("", match["word"]) else None


def _deepseek(
    read_header: Callable[[str, str], CallHeader | None], *, is_fenced: bool, has_reasoning: bool
) -> OutputFormat:
    separator = "<｜tool▁sep｜>"
    return OutputFormat(
        section_begin="<｜tool▁calls▁begin｜>",
        section_end="<｜tool▁calls▁end｜>",
        call_begin="<｜tool▁call▁begin｜>",
        call_tags=(separator,),
        call_end="<｜tool▁call▁end｜>",
        open_call=lambda _types: JsonCallReader(separator, read_header, is_fenced=is_fenced),
        has_reasoning=has_reasoning,
        turn_tags=("<｜Assistant｜>", "<｜tool▁output▁end｜>", "<｜tool▁outputs▁end｜>"),
    )


FORMATS: dict[render_pb2.Parser.ValueType, OutputFormat] = {
    render_pb2.PARSER_DEEPSEEK_V3: _deepseek(_read_fenced, is_fenced=True, has_reasoning=False),
    render_pb2.PARSER_DEEPSEEK_R1: _deepseek(_read_fenced, is_fenced=True, has_reasoning=True),
    render_pb2.PARSER_DEEPSEEK_V3_1: _deepseek(_read_bare, is_fenced=False, has_reasoning=True),
    render_pb2.PARSER_KIMI_K2: OutputFormat(
        section_begin="<|tool_calls_section_begin|>",
        section_end="<|tool_calls_section_end|>",
        call_begin="<|tool_call_begin|>",
        call_tags=(_KIMI_SEPARATOR,),
        call_end="<|tool_call_end|>",
        open_call=lambda _types: JsonCallReader(_KIMI_SEPARATOR, _read_kimi, is_fenced=False),
        has_reasoning=True,
        turn_tags=("<|im_middle|>",),
    ),
    render_pb2.PARSER_DEEPSEEK_V3_2: OutputFormat(
        section_begin="<｜DSML｜function_calls>",
        section_end="</｜DSML｜function_calls>",
        call_begin="<｜DSML｜invoke",
        call_tags=DsmlCallReader.TAGS,
        call_end="</｜DSML｜invoke>",
        open_call=lambda _types: DsmlCallReader(),
        has_reasoning=True,
        # Reasoning goes on after the results of calls without another turn.
        turn_tags=("<｜Assistant｜>", "</function_results>"),
    ),
    render_pb2.PARSER_GLM_4_7: OutputFormat(
        section_begin=None,
        section_end=None,
        call_begin="<tool_call>",
        call_tags=GlmCallReader.TAGS,
        call_end="</tool_call>",
        open_call=GlmCallReader,
        has_reasoning=True,
        turn_tags=("<|assistant|>",),
        needs_value_types=True,
    ),
}


def choose_parser(choice: ParserName, templates: Iterable[str]) -> tuple[ParserName, str]:
    """The parser, and why. A template shows the format in which it writes earlier calls."""
    if choice is not ParserName.AUTO:
        return choice, "as configured"
    source = "\n".join(templates)
    name = ParserName.NONE
    if "<|tool_calls_section_begin|>" in source:
        name = ParserName.KIMI_K2
    elif "｜DSML｜" in source:
        name = ParserName.DEEPSEEK_V3_2
    elif "<arg_key>" in source:
        name = ParserName.GLM_4_7
    elif "<｜tool▁calls▁begin｜>" in source and "```json" not in source:
        name = ParserName.DEEPSEEK_V3_1
    elif "<｜tool▁calls▁begin｜>" in source:
        name = ParserName.DEEPSEEK_R1 if "</think>" in source else ParserName.DEEPSEEK_V3
    if name is ParserName.NONE:
        return name, "the chat template writes no calls in a known format"
    return name, f"the chat template writes calls in the format of {name.value}"
