"""The interface to the libraries that tokenize, and the one that every file can be loaded with."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from services.render.tokenizer.control_tokens import AddedToken, Piece


class TokenizerLibrary(Protocol):
    """A tokenizer.json, loaded. Thread safe; long work leaves other threads running."""

    @property
    def added_tokens(self) -> Sequence[AddedToken]:
        """All of the file's."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a plain text; added tokens in it are found."""

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """Token ids of the pieces, one after the other; added tokens are found where a piece has them."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of all of them at once. Unknown ids decode to nothing."""

    def token(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it; None if there is none with this id."""


class TokenizersLibrary:
    """Hugging Face's `tokenizers`: the reference.

    Only its batch functions are used, with batches of one: the others hold Python's global lock for as long
    as they run, and with it the event loop (2.7 s for 1.5 MB of text, measured).
    """

    def __init__(self, file: Path) -> None:
        """Raises ValueError if the file cannot be read."""
        # Each library is loaded only where it is used: a process needs the memory of one.
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001 the library raises bare Exception for a malformed file
            raise ValueError(f"cannot load {file}: {error}") from None
        # What the file says of lengths is for training.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # The same model, shared, without added tokens.
        self._plain = Tokenizer(self._tokenizer.model)
        if self._tokenizer.normalizer is not None:
            self._plain.normalizer = self._tokenizer.normalizer
        if self._tokenizer.pre_tokenizer is not None:
            self._plain.pre_tokenizer = self._tokenizer.pre_tokenizer
        self.added_tokens = [
            AddedToken(token_id, token.content, token.special, token.lstrip, token.rstrip)
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
        ]

    @property
    def decoder(self) -> dict[str, Any]:
        """The file's section `decoder`; empty if it has none."""
        decoder = self._tokenizer.decoder
        return json.loads(decoder.__getstate__()) if decoder else {}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """As TokenizerLibrary."""
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """As TokenizerLibrary."""
        ids: list[int] = []
        for text, has_control in pieces:
            tokenizer = self._tokenizer if has_control else self._plain
            [encoding] = tokenizer.encode_batch_fast([text], add_special_tokens=False)
            ids += encoding.ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """As TokenizerLibrary."""
        [text] = self._tokenizer.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)
        return str(text)

    def token(self, token_id: int) -> str | None:
        """As TokenizerLibrary."""
        token: str | None = self._tokenizer.id_to_token(token_id)
        return token
