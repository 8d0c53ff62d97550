"""Reads one tool call as it is written: its header, then its arguments."""

import string
from dataclasses import dataclass

from services.render.output.formats import CallHeader, OutputFormat

# A header longer than this, in characters, is none: what is held back stays bounded.
MAX_HEADER_CHARS = 1024

_FENCE = "```"


@dataclass(frozen=True)
class CallPiece:
    """A piece of a call. Id and name come with the first one; the id is empty if the format has none."""

    index: int
    call_id: str
    name: str
    arguments: str


class CallReader:
    """The text between a call's two tags; the arguments' pieces, joined, are the same at any division."""

    def __init__(self, output_format: OutputFormat, index: int) -> None:
        self._format = output_format
        self._index = index
        self._before_separator = ""
        # None as long as the separator has not come.
        self._after_separator: str | None = None
        self.header: CallHeader | None = None
        # The end of the arguments so far, as long as it may be cut off them. Empty before they begin.
        self._held: list[str] = []
        # What follows the arguments' last character for certain if the call ends here.
        self._trimmed = string.whitespace + ("`" if output_format.is_fenced else "")

    @property
    def room(self) -> int:
        """How many more characters the header may have, if it is not complete."""
        return MAX_HEADER_CHARS - len(self._before_separator) - len(self._after_separator or "")

    @property
    def has_separator(self) -> bool:
        """The separator has come."""
        return self._after_separator is not None

    def push_separator(self) -> CallPiece | None:
        """Takes the separator, which comes once."""
        self._after_separator = ""
        return self._try_open()

    def push(self, text: str) -> CallPiece | None:
        """Takes text: up to `room` characters as long as there is no header."""
        if self.header is not None:
            return self._arguments_piece(text)
        if self._after_separator is None:
            self._before_separator += text
            return None
        self._after_separator += text
        return self._try_open()

    def close(self) -> CallPiece | None:
        """The last piece, at the call's end. None: the header is not complete, so it is no call."""
        if self.header is None:
            return None
        rest = "".join(self._held).rstrip(string.whitespace)
        if self._format.is_fenced:
            rest = rest.removesuffix(_FENCE).rstrip(string.whitespace)
        return CallPiece(self._index, "", "", rest)

    def _try_open(self) -> CallPiece | None:
        text = self._after_separator or ""
        self.header = self._format.read_header(self._before_separator, text)
        if self.header is None:
            return None
        first = self._arguments_piece(text[self.header.arguments_start :])
        arguments = first.arguments if first else ""
        return CallPiece(self._index, self.header.call_id, self.header.name, arguments)

    def _arguments_piece(self, text: str) -> CallPiece | None:
        if not self._held:
            text = text.lstrip(string.whitespace)
        certain = text.rstrip(self._trimmed)
        if not certain:
            self._held += [text] if text else []
            return None
        arguments = "".join([*self._held, certain])
        self._held = [text[len(certain) :]]
        return CallPiece(self._index, "", "", arguments)
