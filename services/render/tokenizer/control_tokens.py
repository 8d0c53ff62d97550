"""Which control tokens of a prompt the template itself wrote: only those may be more than text.

A control token in a prompt is the template's if the template wrote every character of it, whatever stands
beside it. Anything else that spells one is text.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from services.render.tokenizer.text_finder import Span, TextFinder

# For each character of a rendering: whether the template wrote it.
TRUSTED, UNTRUSTED = "1", "0"
_TRUSTED_RUN = re.compile(f"{TRUSTED}+")


@dataclass(frozen=True)
class AddedToken:
    """A token that the tokenizer finds as a whole, before it looks at words."""

    token_id: int
    content: str
    # Decoding can leave it out.
    special: bool
    # White space before or after it counts as part of it.
    lstrip: bool
    rstrip: bool


class Piece(NamedTuple):
    """A part of a prompt."""

    text: str
    # Control tokens in it are tokens; otherwise they are text like any other.
    has_control: bool


class Prompt(NamedTuple):
    """A rendered conversation."""

    text: str
    # Joined they are the text. A single one with has_control: tokenized as a whole.
    pieces: list[Piece]
    # The text, less what only spells a control token.
    sanitized: str


class ControlTokens:
    """The control tokens of one tokenizer, and how a prompt is cut along them."""

    def __init__(self, added_tokens: Iterable[AddedToken]) -> None:
        """Every added token is a control token but those of white space, which control nothing. With none,
        content is trusted: nothing is cut."""
        self._tokens = {token.content: token for token in added_tokens if token.content.strip()}
        self._finder = TextFinder(self._tokens)
        self._edges = frozenset(char for token in self._tokens for char in (token[0], token[-1]))

    @property
    def texts(self) -> Iterable[str]:
        """Of all control tokens."""
        return self._tokens.keys()

    def may_touch(self, text: str) -> bool:
        """Whether a text may hold a control token, or a part of one that its neighbours complete."""
        if not self._edges.isdisjoint(text):
            return True
        return len(text) > 1 and any(text in token for token in self._tokens)

    def cut(self, text: str, mask: str) -> Prompt:
        """Along the control tokens that the template wrote. mask: TRUSTED or UNTRUSTED for each character."""
        found = list(self._finder.spans(text))
        if all(UNTRUSTED not in mask[start:stop] for start, stop in found) or not self._tokens:
            # The tokenizer will find these and no others.
            return Prompt(text, [Piece(text, True)], text)
        pieces = self._pieces(text, self._trusted_spans(text, mask))
        return Prompt(text, pieces, "".join(map(self._sanitize, pieces)))

    def _trusted_spans(self, text: str, mask: str) -> Iterator[Span]:
        """Found in what the template wrote alone: beside content the longest token may be another one."""
        for run in _TRUSTED_RUN.finditer(mask):
            for start, stop in self._finder.spans(text[run.start() : run.end()]):
                yield run.start() + start, run.start() + stop

    def _sanitize(self, piece: Piece) -> str:
        return piece.text if piece.has_control else self._finder.replace(piece.text, lambda _: "")

    def _pieces(self, text: str, trusted: Iterable[Span]) -> list[Piece]:
        pieces: list[Piece] = []
        end = 0
        for start, stop in trusted:
            token = self._tokens[text[start:stop]]
            while token.lstrip and start > end and text[start - 1].isspace():
                start -= 1
            while token.rstrip and text[stop : stop + 1].isspace():
                stop += 1
            pieces += (Piece(text[end:start], False), Piece(text[start:stop], True))
            end = stop
        pieces.append(Piece(text[end:], False))
        return [piece for piece in pieces if piece.text]
