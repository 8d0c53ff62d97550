"""Log-probabilities get the text and bytes of their tokens."""

from collections.abc import Iterable
from itertools import chain

from triptych.v1 import types_pb2

from services.render.output.detokenizer import BYTE_TOKEN
from services.render.tokenizer.token_bytes import TokenBytes
from services.render.tokenizer.tokenizer import Tokenizer


class TokenTexts:
    """What single tokens stand for, special tokens included; nothing for ids that the tokenizer lacks."""

    def __init__(self, tokenizer: Tokenizer, token_bytes: TokenBytes | None) -> None:
        """token_bytes: None for a vocabulary that is not byte-level."""
        self._tokenizer = tokenizer
        self._token_bytes = token_bytes
        self._decoded: dict[int, bytes] = {}

    def fill(self, positions: Iterable[types_pb2.PositionLogprobs]) -> None:
        for position in positions:
            for token in chain((position.token,), position.top):
                token.bytes = self._bytes(token.token_id)
                token.text = token.bytes.decode(errors="replace")

    def _bytes(self, token_id: int) -> bytes:
        if self._token_bytes is not None:
            return self._token_bytes[token_id]
        found = self._decoded.get(token_id)
        if found is None:
            found = self._decode(token_id)
            # Ids are the caller's: only those of the vocabulary are remembered.
            if found:
                self._decoded[token_id] = found
        return found

    def _decode(self, token_id: int) -> bytes:
        token = self._tokenizer.token(token_id) or ""
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        if BYTE_TOKEN.fullmatch(token) and text != token:
            return bytes([int(token[3:5], 16)])
        # As it reads after another token: the decoder may strip a space at the beginning.
        twice = self._tokenizer.decode([token_id, token_id], skip_special_tokens=False)
        return twice[len(text) :].encode()
