"""Divides one output into reasoning, text and tool calls, item by item.

A tag where it means nothing is text. So is a call that is cut short or malformed: all that was read of it
comes back, in the order in which it came.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from services.render.output.call_reader import CallPiece, CallReader
from services.render.output.formats import OutputFormat
from services.render.output.tag_scanner import Item


class Channel(Enum):
    """Where written text goes."""

    TEXT = "text"
    REASONING = "reasoning"


class Written(NamedTuple):
    """Text, for one of the channels."""

    channel: Channel
    text: str
    # It comes back from a call that came to nothing, and holds no stop string. Otherwise it is the end of the
    # item just pushed.
    is_leftover: bool = False


@dataclass(frozen=True)
class TagTaken:
    """A tag was taken out of the text: no stop string reaches over the place."""


@dataclass(frozen=True)
class CallEnd:
    """The call whose pieces came last is complete."""

    index: int


Event: TypeAlias = Written | TagTaken | CallPiece | CallEnd


class OutputParser:
    """One output's state: outside of calls, between the calls of a section, or in a call."""

    def __init__(self, output_format: OutputFormat | None, *, starts_in_reasoning: bool) -> None:
        """output_format: None: all is text."""
        self._format = output_format
        self._channel = Channel.REASONING if starts_in_reasoning else Channel.TEXT
        # Something other than white space was written, after which reasoning cannot begin.
        self._has_begun = False
        self._is_in_section = False
        self._section_has_call = False
        self._call: CallReader | None = None
        # Calls begun, those that came to nothing included.
        self._num_calls = 0
        # Read as part of calls; comes back if it turns out not to be.
        self._held: list[str] = []

    @property
    def num_held(self) -> int:
        """Characters of which nothing is sent yet."""
        is_sent = self._call is not None and self._call.header is not None
        return 0 if is_sent else sum(map(len, self._held))

    def push(self, item: Item) -> list[Event]:
        """What this item makes known."""
        if self._format is None:
            return _written(self._channel, item.text)
        if self._call is not None:
            return self._push_in_call(self._format, self._call, item)
        if self._is_in_section or item.tag in (self._format.section_begin, self._format.call_begin):
            return self._push_in_section(self._format, item)
        return self._push_outside(self._format, item)

    def finish(self) -> list[Event]:
        """What is held back, when nothing more comes: a call, or a section without any."""
        if self._call is None and self._section_has_call:
            self._held.clear()
        self._call = None
        return self._take_held()

    def _push_outside(self, output_format: OutputFormat, item: Item) -> list[Event]:
        had_begun = self._has_begun
        self._has_begun = had_begun or bool(item.tag or item.text.strip())
        # A prompt that leaves reasoning open does not keep every model from opening it again.
        if item.tag == output_format.reasoning_begin and not had_begun:
            self._channel = Channel.REASONING
        elif item.tag == output_format.reasoning_end and self._channel is Channel.REASONING:
            self._channel = Channel.TEXT
        else:
            return _written(self._channel, item.text)
        return [TagTaken()]

    def _push_in_section(self, output_format: OutputFormat, item: Item) -> list[Event]:
        """White space between calls belongs to the section; other text ends it. A call may lack a section."""
        was_in_section, self._is_in_section = self._is_in_section, True
        if not was_in_section:
            self._section_has_call, self._has_begun = False, True
        if item.tag == output_format.call_begin:
            self._call = CallReader(output_format, self._num_calls)
            self._num_calls += 1
        if item.tag == output_format.call_begin or not was_in_section:
            self._held.append(item.text)
            return []
        if item.tag == output_format.section_end:
            self._held.append(item.text)
            self._is_in_section = False
            return self.finish()
        text = item.text if item.tag else item.text.lstrip()
        self._held.append(item.text[: len(item.text) - len(text)])
        if not item.tag and not text:
            return []
        self._is_in_section = False
        return [*self._take_held(), *self.push(Item(text, item.tag))]

    def _push_in_call(self, output_format: OutputFormat, call: CallReader, item: Item) -> list[Event]:
        is_text = item.tag in ("", output_format.reasoning_begin, output_format.reasoning_end)
        if is_text and call.header is None and len(item.text) > call.room:
            return self._give_up_header(output_format, call, item)
        self._held.append(item.text)
        if is_text:
            return _pieces(call.push(item.text))
        if item.tag == output_format.separator and not call.has_separator:
            return _pieces(call.push_separator())
        self._call = None
        if item.tag != output_format.call_end:
            self._held.pop()
            return [*self._take_held(), *self._push_in_section(output_format, item)]
        last = call.close()
        if last is None:
            return self._take_held()
        self._held.clear()
        self._section_has_call = True
        # Whoever calls a tool has thought enough: Kimi K2 sometimes leaves out the end of its reasoning.
        self._channel = Channel.TEXT
        return [*(_pieces(last) if last.arguments else []), CallEnd(last.index)]

    def _give_up_header(self, output_format: OutputFormat, call: CallReader, item: Item) -> list[Event]:
        """Too much text for a header: it all is text, from its bound on as if there had been no call."""
        room = call.room
        piece = call.push(item.text[:room])
        if piece is not None:
            self._held.append(item.text[:room])
            return [piece, *self._push_in_call(output_format, call, Item(item.text[room:], item.tag))]
        self._held.append(item.text[:room])
        self._call = None
        self._is_in_section = False
        return [*self._take_held(), *self._push_outside(output_format, Item(item.text[room:]))]

    def _take_held(self) -> list[Event]:
        text = "".join(self._held)
        self._held.clear()
        return [Written(self._channel, text, is_leftover=True)] if text else []


def _written(channel: Channel, text: str) -> list[Event]:
    return [Written(channel, text)] if text else []


def _pieces(piece: CallPiece | None) -> list[Event]:
    return [] if piece is None else [piece]
