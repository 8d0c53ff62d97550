"""Reads one tool call as it is written."""

import string
from collections.abc import Callable
from typing import NamedTuple, Protocol

# A header longer than this, in characters, is none: what is buffered for it stays bounded.
MAX_HEADER_CHARS = 1024

_FENCE = "```"


class MalformedCallError(Exception):
    """What was fed last cannot be a part of a call."""


class CallReader(Protocol):
    """What stands between a call's first tag and its last. The pieces of its arguments, joined, are the same
    at any division."""

    # Empty until it is known; the id also where the format has none.
    name: str
    call_id: str

    def feed(self, text: str, tag: str) -> str:
        """More of the arguments. tag: of the format's; empty for text. Raises MalformedCallError."""

    def close(self) -> str:
        """The arguments' rest, at the call's last tag. Raises MalformedCallError if it comes too early."""


class CallHeader(NamedTuple):
    """What stands before a call's arguments."""

    # Empty: the format has none.
    call_id: str
    name: str
    # Where the arguments begin in the text after the separator.
    arguments_start: int


class JsonCallReader:
    """A header with a separator in or after it, then the arguments as JSON text."""

    def __init__(
        self, separator: str, read_header: Callable[[str, str], CallHeader | None], *, is_fenced: bool
    ) -> None:
        """read_header: (text before the separator, text after it so far): the header, or None as long as it
        is not complete. is_fenced: the arguments stand in a fenced block, whose closing fence is not theirs.
        """
        self.name = self.call_id = ""
        self._separator = separator
        self._read_header = read_header
        self._is_fenced = is_fenced
        self._before_separator = ""
        # None as long as the separator has not come.
        self._after_separator: str | None = None
        self._has_arguments = False
        # The end of the arguments so far, as long as it may be cut off them.
        self._buffer: list[str] = []
        # What follows the arguments' last character for certain if the call ends here.
        self._trimmed = string.whitespace + ("`" if is_fenced else "")

    def feed(self, text: str, tag: str) -> str:
        if tag:
            if tag != self._separator or self._after_separator is not None:
                raise MalformedCallError
            self._after_separator = text = ""
        return self._feed_arguments(text) if self.name else self._feed_header(text)

    def close(self) -> str:
        if not self.name:
            raise MalformedCallError
        rest = "".join(self._buffer).rstrip(string.whitespace)
        if self._is_fenced:
            rest = rest.removesuffix(_FENCE).rstrip(string.whitespace)
        # A call without arguments has none of them, not no JSON.
        return rest if rest or self._has_arguments else "{}"

    def _feed_header(self, text: str) -> str:
        if self._after_separator is None:
            self._before_separator += text
        else:
            self._after_separator += text
            room = max(0, MAX_HEADER_CHARS - len(self._before_separator))
            header = self._read_header(self._before_separator, self._after_separator[:room])
            if header is not None:
                self.call_id, self.name = header.call_id, header.name
                return self._feed_arguments(self._after_separator[header.arguments_start :])
        if len(self._before_separator) + len(self._after_separator or "") > MAX_HEADER_CHARS:
            raise MalformedCallError
        return ""

    def _feed_arguments(self, text: str) -> str:
        if not self._has_arguments and not self._buffer:
            text = text.lstrip(string.whitespace)
        certain = text.rstrip(self._trimmed)
        if not certain:
            self._buffer += [text] if text else []
            return ""
        arguments = "".join([*self._buffer, certain])
        self._buffer = [text[len(certain) :]]
        self._has_arguments = True
        return arguments
