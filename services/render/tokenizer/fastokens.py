"""The library `fastokens`: the same ids as `tokenizers`, many times faster, for byte-level files."""

import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from fastokens import Tokenizer

from services.render.time_limit import check_clock
from services.render.tokenizer.control_tokens import AddedToken, Piece
from services.render.tokenizer.library import check_added
from services.render.tokenizer.token_bytes import TokenBytes
from shared.tokenizer_files import missing_added_tokens

# A text between two control tokens that an earlier request had, such as a message of the conversation's
# history, is not tokenized again. This much is kept of such texts and their ids, in 64 parts: a text of more
# than about 60,000 tokens is not kept.
_SEGMENT_CACHE_BYTES = 32 * 1024 * 1024


class FastokensLibrary:
    """A TokenizerLibrary. Encoding leaves other threads running; its own decoding would not."""

    def __init__(self, file: Path) -> None:
        """Raises ValueError, OSError or CheckpointError if the files cannot be loaded."""
        # A text on one core: the other ones are for other requests, and each helper would need 16 MB.
        os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
        self._tokenizer = Tokenizer.from_file(str(file))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.enable_segment_cache(_SEGMENT_CACHE_BYTES)
        known = {token["id"]: token["content"] for token in self._tokenizer.added_tokens()}
        missing = missing_added_tokens(file.parent, known)
        self._tokenizer.add_tokens(missing)
        check_added(file, missing, self._tokenizer)
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
        parts: list[list[int]] = []
        for text, has_control in pieces:
            check_clock()
            parts.append((encode if has_control else encode_ordinary)(text).ids)
        ids: list[int] = parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """As TokenizerLibrary."""
        return self._token_bytes.decode(token_ids, self._special_token_ids if skip_special_tokens else ())

    def token(self, token_id: int) -> str | None:
        """As TokenizerLibrary."""
        token: str | None = self._tokenizer.id_to_token(token_id)
        return token
