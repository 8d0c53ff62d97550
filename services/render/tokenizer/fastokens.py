"""The library `fastokens`: the same ids as `tokenizers`, many times faster, for byte-level files."""

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from fastokens import Tokenizer

from services.render.tokenizer.control_tokens import AddedToken, Piece
from services.render.tokenizer.token_bytes import TokenBytes

# A text between two control tokens that an earlier request had, such as a message of the conversation's
# history, is not tokenized again. This much is kept of such texts and their ids, in 64 parts: a text of more
# than about 60,000 tokens is not kept.
_SEGMENT_CACHE_BYTES = 32 * 1024 * 1024
# Tokens decoded at a time: no more than a millisecond in which no other thread runs.
_DECODE_CHUNK = 8192


class FastokensLibrary:
    """A TokenizerLibrary. Encoding leaves other threads running; its own decoding would not."""

    def __init__(self, file: Path) -> None:
        """Raises ValueError or OSError if the file cannot be loaded."""
        # A text on one core: the other ones are for other requests, and each helper would need 16 MB.
        os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
        self._tokenizer = Tokenizer.from_file(str(file))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.enable_segment_cache(_SEGMENT_CACHE_BYTES)
        self.added_tokens = [
            AddedToken(token["id"], token["content"], token["special"], token["lstrip"], token["rstrip"])
            for token in self._tokenizer.added_tokens()
        ]
        self._special_token_ids = frozenset(token.token_id for token in self.added_tokens if token.special)
        self._token_bytes = TokenBytes(self.token)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """As TokenizerLibrary."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """As TokenizerLibrary."""
        # Not encode_segments, which keeps Python's global lock; the other two give it up.
        encode, encode_ordinary = self._tokenizer.encode, self._tokenizer.encode_ordinary
        parts = [(encode if has_control else encode_ordinary)(text).ids for text, has_control in pieces]
        ids: list[int] = parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """As TokenizerLibrary."""
        skipped = self._special_token_ids if skip_special_tokens else frozenset[int]()
        return b"".join(self._chunks(token_ids, skipped)).decode(errors="replace")

    def token(self, token_id: int) -> str | None:
        """As TokenizerLibrary."""
        token: str | None = self._tokenizer.id_to_token(token_id)
        return token

    def _chunks(self, token_ids: Sequence[int], skipped: frozenset[int]) -> Iterator[bytes]:
        for start in range(0, len(token_ids), _DECODE_CHUNK):
            chunk = token_ids[start : start + _DECODE_CHUNK]
            yield b"".join([self._token_bytes[each] for each in chunk if each not in skipped])
