"""Byte-level vocabularies: which bytes a token stands for."""

from collections.abc import Callable, Collection, Iterator, Sequence

# Tokens decoded at a time: no more than a millisecond in which no other thread runs.
_DECODE_CHUNK = 8192


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

    def decode(self, token_ids: Sequence[int], skipped: Collection[int]) -> str:
        """The text of all of them at once, but of those skipped; invalid bytes are replaced."""
        return b"".join(self._chunks(token_ids, skipped)).decode(errors="replace")

    def _chunks(self, token_ids: Sequence[int], skipped: Collection[int]) -> Iterator[bytes]:
        for start in range(0, len(token_ids), _DECODE_CHUNK):
            chunk = token_ids[start : start + _DECODE_CHUNK]
            yield b"".join([self[each] for each in chunk if each not in skipped])

    def _look_up(self, token_id: int) -> bytes:
        token = self._spelling(token_id) or ""
        try:
            return bytes(map(_CHAR_TO_BYTE.__getitem__, token))
        except KeyError:
            return token.encode()  # an added token: spelled as it is


def spell(token: bytes) -> str:
    """A token's bytes as a byte-level vocabulary spells them."""
    return token.decode("latin-1").translate(_BYTE_TO_CHAR)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 and on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(0x100) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + index): byte for index, byte in enumerate(others)},
    }


_CHAR_TO_BYTE = _byte_alphabet()
_BYTE_TO_CHAR = {byte: char for char, byte in _CHAR_TO_BYTE.items()}
# How a byte-level vocabulary spells the single bytes.
BYTE_ALPHABET = _CHAR_TO_BYTE.keys()
