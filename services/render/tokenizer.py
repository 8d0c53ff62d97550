"""The model's tokenizer: tokenizer.json, loaded as it is.

tokenizer_config.json often names a class that the file is not; loading through such a class loses spaces.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as TokenizerFile

from shared.config import ConfigError
from shared.errors import Reason, ServiceError

_ROUND_TRIP_TEXTS = (
    "two  spaces and   three",
    "lines\nof text\n\n\tand a tab",
    "汉字とかな 한국어",
    "naïve café, Ελληνικά, العربية",
    "emoji 👩‍👩‍👧 and 🏳️‍🌈",
    "def f(x):\n    return {'a': x ** 2}\n",
)


class Tokenizer:
    """Text to token ids and back. Thread safe: nothing of it changes after the start.

    Only the batch functions of the library are used, with batches of one: the others hold Python's global
    lock for as long as they run, and with it the event loop (2.7 s for 1.5 MB of text, measured).
    """

    def __init__(self, file: Path) -> None:
        """Raises ConfigError if the file cannot be read, or does not give back the text that it is given."""
        try:
            self._tokenizer = TokenizerFile.from_file(str(file))
        except Exception as error:  # noqa: BLE001 the library raises bare Exception for a malformed file
            raise ConfigError(f"cannot load {file}: {error}") from None
        # What the file says of lengths is for training.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        decoder = self._tokenizer.decoder
        # The file's section `decoder`; empty if it has none.
        self.decoder: dict[str, Any] = json.loads(decoder.__getstate__()) if decoder else {}
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._check_round_trip(file)

    def encode(self, text: str, *, add_special_tokens: bool, field: str) -> list[int]:
        """Token ids. add_special_tokens: also what the tokenizer adds to a plain prompt.

        field: the path that an error names. Raises ServiceError (INVALID_TEXT).
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            message = f"{field} holds half of a surrogate pair, which is no character"
            raise ServiceError(Reason.INVALID_TEXT, message, field=field) from None
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """The text of all of them at once. Ids that the tokenizer does not know decode to nothing."""
        text: str = self._tokenizer.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)[0]
        return text

    def token(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it; None if there is none with this id."""
        token: str | None = self._tokenizer.id_to_token(token_id)
        return token

    def _check_round_trip(self, file: Path) -> None:
        for text in _ROUND_TRIP_TEXTS:
            ids = self.encode(text, add_special_tokens=False, field="text")
            if (back := self.decode(ids, skip_special_tokens=False)) != text:
                raise ConfigError(f"{file} does not give text back: {text!r} becomes {back!r}")
