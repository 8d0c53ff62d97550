"""The interface to the libraries that tokenize, and the one that every tokenizer.json can be loaded with."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from services.render.time_limit import check_clock
from services.render.tokenizer.control_tokens import AddedToken, Piece
from services.render.tokenizer.token_bytes import BYTE_ALPHABET
from shared.model_files import CheckpointError
from shared.tokenizer_files import AddedTokenEntry, contradiction, missing_added_tokens


class TokenizerLibrary(Protocol):
    """A model folder's tokenizer, loaded. Thread safe; long work leaves other threads running."""

    @property
    def added_tokens(self) -> Sequence[AddedToken]:
        """All of the file's, and those that only tokenizer_config.json has."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a plain text; added tokens in it are found."""

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """Token ids of the pieces, one after the other; added tokens are found where a piece has them."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of all of them at once. Unknown ids decode to ""."""

    def token(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it; None if there is none with this id."""


class TokenizersLibrary:
    """Hugging Face's `tokenizers`: the reference.

    Only its batch functions are used, with batches of one: the others hold Python's global lock for as long
    as they run, and with it the event loop (2.7 s for 1.5 MB of text, measured).
    """

    def __init__(self, file: Path) -> None:
        """Raises CheckpointError if the files cannot be read."""
        # Each library is loaded only where it is used: a process needs the memory of one.
        from tokenizers import AddedToken as LibraryToken
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001 the library raises bare Exception for a malformed file
            raise CheckpointError(f"cannot load {file}: {error}") from None
        known = self._tokenizer.get_added_tokens_decoder()
        missing = missing_added_tokens(file.parent, {each: token.content for each, token in known.items()})
        for entry in missing:
            fields = asdict(entry)
            del fields["id"]
            self._tokenizer.add_tokens([LibraryToken(**fields)])
        check_added(file, missing, self._tokenizer)
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

    @property
    def max_token_chars(self) -> int | None:
        """The most characters of a text that one token stands for; None if there is no such bound.

        There is none if the text is normalized first, if a token takes the white space beside it, or if
        characters that the vocabulary lacks become one unknown token.
        """
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        normalizer = self._tokenizer.normalizer
        is_byte_level = self.decoder.get("type") == "ByteLevel" and vocabulary.keys() >= BYTE_ALPHABET
        normalizes = normalizer is not None and json.loads(normalizer.__getstate__()).get("normalizers") != []
        takes_spaces = any(token.lstrip or token.rstrip for token in self.added_tokens)
        if not is_byte_level or normalizes or takes_spaces:
            return None
        # Spelled with a character for each byte: no token has more characters than that.
        return max(map(len, vocabulary))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """As TokenizerLibrary."""
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """As TokenizerLibrary."""
        ids: list[int] = []
        for text, has_control in pieces:
            check_clock()
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


def check_added(file: Path, added: Sequence[AddedTokenEntry], tokenizer: Any) -> None:
    """Raises CheckpointError if a library gave an added token another id than the one declared: the id is
    another token's, the content is, or the id is not the next one free. tokenizer: of either library."""
    for entry in added:
        if (content := tokenizer.id_to_token(entry.id)) == entry.content:
            continue
        other = f"token {entry.id} is {content!r}"
        if content is None:
            other = f"{entry.content!r} is token {tokenizer.token_to_id(entry.content)}"
        raise contradiction(file.parent / "tokenizer_config.json", entry, other)
