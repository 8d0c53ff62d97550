"""Incremental decoding: tokens in, one at a time, text out as soon as nothing can change it any more.

For any token ids, the texts returned by `feed` and `flush`, joined, are `Tokenizer.decode` of all of them.
"""

import codecs
import re
from typing import Protocol

from services.render.tokenizer.token_bytes import TokenBytes
from services.render.tokenizer.tokenizer import Tokenizer

# What stands for one byte in vocabularies that are not byte-level.
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Windows of the general detokenizer, in tokens: what is decoded again with each new token.
_CONTEXT = 8
_MAX_WINDOW = 64


class Detokenizer(Protocol):
    """Decodes one output."""

    def feed(self, token_id: int) -> str:
        """The text that became final with this token; empty while a character is incomplete."""

    def flush(self) -> str:
        """The rest: what an incomplete character at the very end decodes to."""

    def flush_before(self, token_id: int) -> str:
        """The rest, where a token follows that is not to be decoded; nothing reaches across it."""

    @property
    def has_incomplete_text(self) -> bool:
        """Text of tokens pushed so far is still to come."""


class DetokenizerFactory:
    """Makes the fitting detokenizer for a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        is_byte_level = tokenizer.decoder.get("type") == "ByteLevel"
        # None for a vocabulary of another kind.
        self.token_bytes = TokenBytes(tokenizer.token) if is_byte_level else None

    def create(self, *, skip_special_tokens: bool) -> Detokenizer:
        """A detokenizer for one output."""
        skipped = self._tokenizer.special_token_ids if skip_special_tokens else frozenset()
        if self.token_bytes is not None:
            return ByteLevelDetokenizer(self.token_bytes, skipped)
        return WindowDetokenizer(self._tokenizer, skipped)


class ByteLevelDetokenizer:
    """For byte-level vocabularies: bytes through an incremental UTF-8 decoder, invalid ones replaced."""

    def __init__(self, token_bytes: TokenBytes, skipped: frozenset[int]) -> None:
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        return "" if token_id in self._skipped else self._decoder.decode(self._token_bytes[token_id])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)

    def flush_before(self, token_id: int) -> str:
        return self.flush()

    @property
    def has_incomplete_text(self) -> bool:
        return bool(self._decoder.getstate()[0])


class WindowDetokenizer:
    """For every other decoder: decodes the last few tokens again with each new one and sends what is new.

    A run of byte tokens (`<0xE4>`) is decoded as a whole, so it is buffered until another token ends it.
    Exact for decoders in which a token's text depends on at most _CONTEXT tokens before it.
    """

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._window: list[int] = []
        self._num_chars_sent = 0  # of the window's text
        self.has_incomplete_text = False

    def feed(self, token_id: int) -> str:
        token = self._tokenizer.token(token_id)
        if token is None or token_id in self._skipped:
            return ""
        self._window.append(token_id)
        if BYTE_TOKEN.fullmatch(token):
            self.has_incomplete_text = True
            return ""
        text = self._window_text()
        # A replacement character at the end may still become another one.
        self.has_incomplete_text = text.endswith("\ufffd")
        num_final = len(text) - self.has_incomplete_text
        new = text[self._num_chars_sent : num_final]
        self._num_chars_sent += len(new)
        if len(self._window) > _MAX_WINDOW:
            del self._window[:-_CONTEXT]
            self._num_chars_sent = len(self._window_text()) - self.has_incomplete_text
        return new

    def flush(self) -> str:
        new = self._window_text()[self._num_chars_sent :]
        self._num_chars_sent += len(new)
        self.has_incomplete_text = False
        return new

    def flush_before(self, token_id: int) -> str:
        new = self.flush()
        self._window.append(token_id)
        del self._window[:-_CONTEXT]
        self._num_chars_sent = len(self._window_text())
        return new

    def _window_text(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False)
