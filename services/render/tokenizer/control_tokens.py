"""Which control tokens of a prompt the template itself wrote: only those may be more than text.

While a template is rendered, the characters of its own control tokens are in disguise: each is a private-use
character, its mark. Content is never disguised. So however the template moves, joins, trims or JSON-encodes
its texts, a control token in the result is the template's if and only if every character of it is a mark,
whatever content stands beside it. What forgets marks makes text of a token, never a token of text.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.render.tokenizer.text_finder import Span, TextFinder, replace_spans, spans_of

# The marks are the private-use characters up to here: of all of them the least likely in a text.
_LAST_MARK = 0x10FFFD
# Where a mark's UTF-8 begins, and that of no character outside its plane, which is all private use.
_FIRST_BYTE_OF_MARKS = b"\xf4"


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
    # Control tokens in it are meant; otherwise they are text like any other.
    has_control: bool


class Prompt(NamedTuple):
    """A rendered conversation."""

    text: str
    # Joined they are the text. A single one with has_control: tokenized as a whole.
    pieces: list[Piece]
    # The text, less what only spells a control token.
    meant: str


class ControlTokens:
    """The control tokens of one tokenizer, their disguise, and how a prompt is cut along them."""

    def __init__(self, added_tokens: Iterable[AddedToken]) -> None:
        """Every added token is a control token but those of white space, which control nothing. With none,
        content is trusted: nothing is in disguise, and nothing is cut."""
        self._tokens = {token.content: token for token in added_tokens if token.content.strip()}
        alphabet = sorted(set().union(*self._tokens))
        first = _LAST_MARK + 1 - len(alphabet)
        self._char_to_mark = {ord(char): chr(first + index) for index, char in enumerate(alphabet)}
        self._mark_to_char = {ord(mark): chr(char) for char, mark in self._char_to_mark.items()}
        self._marks = re.compile(f"[{chr(first)}-{chr(_LAST_MARK)}]+" if alphabet else "(?!)")
        self._finder = TextFinder(self._tokens)
        self._marked_finder = TextFinder(map(self.mark, self._tokens))
        self._sorted = sorted(self._tokens)
        self._sorted_backwards = sorted(token[::-1] for token in self._tokens)

    @property
    def texts(self) -> Iterable[str]:
        """Of all control tokens."""
        return self._tokens.keys()

    def has_marks(self, text: str) -> bool:
        """Whether a text holds a character that we use as a mark."""
        if text.isascii() or _FIRST_BYTE_OF_MARKS not in text.encode(errors="surrogatepass"):
            return False
        return any(True for _ in spans_of(self._marks, text))

    def is_open(self, text: str) -> bool:
        """Whether a text ends or begins inside a token, which its neighbour may complete."""
        return self._open_ends(self._finder.replace(text, lambda _: "\n")) != (0, 0)

    def mark(self, text: str) -> str:
        """The text with all characters that tokens consist of in disguise."""
        return text.translate(self._char_to_mark)

    def mark_tokens(self, text: str) -> str:
        """The text with the tokens in it, and what may be half of one at its ends, in disguise."""
        text = self._finder.replace(text, self.mark)
        at_start, at_end = self._open_ends(text)
        end = len(text) - at_end
        return self.mark(text[:at_start]) + text[at_start:end] + self.mark(text[end:])

    def unmark(self, text: str) -> str:
        """The text without disguise."""
        if not self.has_marks(text):
            return text
        return replace_spans(text, spans_of(self._marks, text), self._read)

    def cut(self, marked: str) -> Prompt:
        """What a rendering's text is, and which control tokens in it are meant."""
        if not self._tokens:
            return Prompt(marked, [Piece(marked, True)], marked)
        own = list(self._marked_finder.spans(marked))
        # The tokens first: few marks, if any, stand elsewhere, and looking for those takes longer.
        text = self.unmark(replace_spans(marked, own, self._read))
        if list(self._finder.spans(text)) == own:
            # The tokenizer will find these and no others.
            return Prompt(text, [Piece(text, True)], text)
        pieces = self._pieces(text, own)
        return Prompt(text, pieces, "".join(map(self._meant, pieces)))

    def _meant(self, piece: Piece) -> str:
        return piece.text if piece.has_control else self._finder.replace(piece.text, lambda _: "")

    def _read(self, marks: str) -> str:
        return marks.translate(self._mark_to_char)

    def _open_ends(self, text: str) -> tuple[int, int]:
        """How many characters at the start end a token, and how many at the end begin one."""
        at_start = _overlap(text[::-1], self._sorted_backwards)
        return at_start, min(_overlap(text, self._sorted), len(text) - at_start)

    def _pieces(self, text: str, own: list[Span]) -> list[Piece]:
        pieces: list[Piece] = []
        end = 0
        for start, stop in own:
            token = self._tokens[text[start:stop]]
            while token.lstrip and start > end and text[start - 1].isspace():
                start -= 1
            while token.rstrip and text[stop : stop + 1].isspace():
                stop += 1
            pieces += (Piece(text[end:start], False), Piece(text[start:stop], True))
            end = stop
        pieces.append(Piece(text[end:], False))
        return [piece for piece in pieces if piece.text]


def _overlap(text: str, tokens: Sequence[str]) -> int:
    """How many characters at the text's end begin one of the tokens, which are sorted."""
    for size in range(min(len(text), max(map(len, tokens), default=0)), 0, -1):
        end = text[-size:]
        index = bisect_left(tokens, end)
        if index < len(tokens) and tokens[index].startswith(end):
            return size
    return 0
