"""Byte-level vocabularies: which bytes a token stands for."""

from collections.abc import Callable


class TokenBytes:
    """The bytes of each token of a byte-level vocabulary, looked up when first needed."""

    def __init__(self, spelling: Callable[[int], str | None]) -> None:
        """spelling: a token as the vocabulary spells it; None if there is none with this id."""
        self._spelling = spelling
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        """Empty for ids that the tokenizer does not know: the output layer may have more rows."""
        found = self._known.get(token_id)
        if found is None:
            found = self._look_up(token_id)
            # Ids are the caller's: only those of the vocabulary are remembered.
            if found:
                self._known[token_id] = found
        return found

    def _look_up(self, token_id: int) -> bytes:
        token = self._spelling(token_id) or ""
        try:
            return bytes(map(_CHAR_TO_BYTE.__getitem__, token))
        except KeyError:
            return token.encode()  # an added token: spelled as it is


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 and on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(0x100) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + index): byte for index, byte in enumerate(others)},
    }


_CHAR_TO_BYTE = _byte_alphabet()
