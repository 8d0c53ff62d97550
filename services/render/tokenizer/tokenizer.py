"""The model's tokenizer: tokenizer.json or tiktoken.model, loaded as it is.

The tokenizer_config.json beside a tokenizer.json often names a class that the file is not; loading through
such a class loses spaces. Only its added_tokens_decoder is read.
"""

from collections.abc import Sequence
from pathlib import Path

from services.render.memory import give_back_memory
from services.render.tokenizer.choice import LoadedTokenizer, TokenizerName, load_library
from services.render.tokenizer.control_tokens import ControlTokens, Piece
from shared.config import ConfigError
from shared.errors import Reason, ServiceError
from shared.model_files import CheckpointError

_ROUND_TRIP_TEXTS = (
    "two  spaces and   three",
    "lines\nof text\n\n\tand a tab",
    "汉字とかな 한국어",
    "naïve café, Ελληνικά, العربية",
    "emoji 👩‍👩‍👧 and 🏳️‍🌈",
    "def f(x):\n    return {'a': x ** 2}\n",
)


class Tokenizer:
    """Text to token ids and back. Thread safe: nothing of it changes after the start."""

    def __init__(self, file: Path, name: TokenizerName = TokenizerName.AUTO) -> None:
        """file: a folder's tokenizer.json or tiktoken.model. Raises ConfigError if it cannot be read, or does
        not give back the text that it is given."""
        loaded = _load(file, name)
        give_back_memory()  # reading the file leaves 20 MB
        self._library = loaded.library
        # Names the tokenizer to workers.
        self.fingerprint = loaded.fingerprint
        # The library in use, and why.
        self.name = loaded.name
        self.reason = loaded.reason
        # The file's section `decoder`; empty if it has none.
        self.decoder = loaded.decoder
        # The most characters of a text that one token stands for; None if there is no such bound.
        self.max_token_chars = loaded.max_token_chars
        added_tokens = self._library.added_tokens
        self.special_token_ids = frozenset(token.token_id for token in added_tokens if token.special)
        self.control_tokens = ControlTokens(added_tokens)

    def encode(self, text: str, *, add_special_tokens: bool, field: str) -> list[int]:
        """Token ids of a plain text. add_special_tokens: also what the tokenizer adds to a plain prompt.

        field: the path that an error names. Raises ServiceError (INVALID_TEXT).
        """
        _refuse_surrogates(text, field)
        return self._library.encode(text, add_special_tokens=add_special_tokens)

    def encode_pieces(self, pieces: Sequence[Piece], *, field: str) -> list[int]:
        """Token ids of a prompt whose pieces say where control tokens are tokens.

        field: the path that an error names. Raises ServiceError (INVALID_TEXT).
        """
        for piece in pieces:
            _refuse_surrogates(piece.text, field)
        return self._library.encode_pieces(pieces)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of all of them at once. Ids that the tokenizer does not know decode to ""."""
        return self._library.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it; None if there is none with this id."""
        return self._library.token(token_id)


def _load(file: Path, name: TokenizerName) -> LoadedTokenizer:
    try:
        loaded = load_library(file, name)
    except CheckpointError as error:
        raise ConfigError(str(error)) from None
    for text in _ROUND_TRIP_TEXTS:
        ids = loaded.library.encode(text, add_special_tokens=False)
        if (back := loaded.library.decode(ids, skip_special_tokens=False)) != text:
            raise ConfigError(f"{file} does not give text back: {text!r} becomes {back!r}")
    return loaded


def _refuse_surrogates(text: str, field: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{field} holds a lone surrogate, which is no character"
        raise ServiceError(Reason.INVALID_TEXT, message, field=field) from None
