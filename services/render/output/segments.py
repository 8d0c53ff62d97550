"""What the stages between a token and a delta pass on: segments of output text."""

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol


class Channel(Enum):
    """Where text goes."""

    TEXT = "text"
    REASONING = "reasoning"


class CallPiece(NamedTuple):
    """What a segment of a tool call's arguments belongs to."""

    call_index: int
    # In the call's first piece, else empty.
    call_id: str
    name: str
    # The call is complete.
    is_last: bool


class Segment(NamedTuple):
    """Text of one token, or a tag, or a piece of a tool call's arguments."""

    text: str
    # Of the token that completes it, from 1 for the output's first.
    number: int
    # The tag that this is; empty for text. Behind the parser: a tag that it took out of the text.
    tag: str = ""
    # A tag's text by token; empty if its token is left out of the text.
    parts: tuple["Segment", ...] = ()
    # The rest is set by the parser.
    channel: Channel = Channel.TEXT
    # It was read as a part of a call that then was none: no stop string is looked for in it.
    is_literal: bool = False
    call: CallPiece | None = None


class Stage(Protocol):
    """A step on the way: takes segments in order, and buffers what later ones may change."""

    def feed(self, segment: Segment) -> Sequence[Segment]:
        """What this segment makes known."""

    def flush(self) -> Sequence[Segment]:
        """What is buffered, where the output ends."""

    @property
    def oldest(self) -> int | None:
        """The number of the first token that text is buffered of; None if nothing is."""


class SegmentBuffer:
    """Segments of text, in order, to be taken from the front by characters."""

    def __init__(self) -> None:
        self._segments: deque[Segment] = deque()
        self.num_chars = 0

    @property
    def oldest(self) -> int | None:
        """As Stage."""
        return self._segments[0].number if self._segments else None

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(segment.text for segment in self._segments)

    def append(self, segment: Segment) -> None:
        self._segments.append(segment)
        self.num_chars += len(segment.text)

    def take(self, num_chars: int) -> list[Segment]:
        """The first characters, with the last segment cut where they end."""
        taken = []
        self.num_chars -= num_chars
        while num_chars:
            segment = self._segments.popleft()
            if len(segment.text) > num_chars:
                self._segments.appendleft(segment._replace(text=segment.text[num_chars:]))
                segment = segment._replace(text=segment.text[:num_chars])
            taken.append(segment)
            num_chars -= len(segment.text)
        return taken

    def take_all(self) -> list[Segment]:
        return self.take(self.num_chars)

    def clear(self) -> None:
        self._segments.clear()
        self.num_chars = 0
