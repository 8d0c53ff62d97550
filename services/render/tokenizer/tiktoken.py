"""Checkpoints with a tiktoken.model (Kimi K2, Moonlight), which the library `tiktoken` reads.

The folder's own Python code is not run: what it says beside the file's ranks is here.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tiktoken

from services.render.time_limit import check_clock
from services.render.tokenizer.control_tokens import AddedToken, Piece
from services.render.tokenizer.text_finder import TextFinder
from services.render.tokenizer.token_bytes import TokenBytes, spell
from shared.model_files import CheckpointError, read_bytes, read_json
from shared.tokenizer_files import contradiction, missing_added_tokens

# The classes whose pattern, reserved tokens and cuts are those below: in moonshotai/Kimi-K2-Instruct and in
# moonshotai/Moonlight-16B-A3B-Instruct.
KNOWN_CLASSES = ("tokenization_kimi.TikTokenTokenizer", "tokenization_moonshot.TikTokenTokenizer")

# `pat_str` there. Letters without Han, as words in any mixture of cases with an English ending.
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        f"{_BEFORE}{_UPPER}*{_LOWER}+{_ENDING}",
        f"{_BEFORE}{_UPPER}+{_LOWER}*{_ENDING}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

# `num_reserved_special_tokens`: the ids after the ranks. There the code names two more, which the models'
# output layers do not have.
NUM_RESERVED = 256

# Where `encode` there cuts a text, so that the ids of a longer one are the same: after so many characters,
# and in a longer run of white space or of anything else.
_MAX_CHARS = 400_000
_LONG_RUN = re.compile(r"\s{25000}(?=\s)|\S{25000}(?=\S)")


class TiktokenLibrary:
    """A TokenizerLibrary. Long work leaves other threads running."""

    # As tokenizer.json would say it.
    decoder: dict[str, Any] = {"type": "ByteLevel"}  # noqa: RUF012 never changed

    def __init__(self, file: Path) -> None:
        """file: a folder's tiktoken.model. Raises CheckpointError if it, or what stands beside it, cannot be
        read or is of another kind."""
        _refuse_unknown_class(file.parent / "tokenizer_config.json")
        ranks = _read_ranks(file)
        self.added_tokens = list(_added_tokens(file, len(ranks)))
        self._id_of = {token.content: token.token_id for token in self.added_tokens}
        self._content_of = {token.token_id: token.content for token in self.added_tokens}
        self._special_token_ids = frozenset(token.token_id for token in self.added_tokens if token.special)
        self._finder = TextFinder(self._id_of)
        self._encoding = tiktoken.Encoding(
            file.name, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=self._id_of
        )
        self._token_bytes = TokenBytes(self.token)
        self.max_token_chars = max(map(len, [*ranks, *self._id_of]))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """As TokenizerLibrary. Such a tokenizer adds nothing to a plain prompt."""
        return self.encode_pieces([Piece(text, True)])

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """As TokenizerLibrary."""
        ids: list[int] = []
        for text, has_control in pieces:
            end = 0
            for start, stop in self._finder.spans(text) if has_control else ():
                ids += self._encode_ordinary(text[end:start])
                ids.append(self._id_of[text[start:stop]])
                end = stop
            ids += self._encode_ordinary(text[end:])
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """As TokenizerLibrary."""
        return self._token_bytes.decode(token_ids, self._special_token_ids if skip_special_tokens else ())

    def token(self, token_id: int) -> str | None:
        """As TokenizerLibrary, spelled as in a byte-level tokenizer.json."""
        if (content := self._content_of.get(token_id)) is not None:
            return content
        try:
            return spell(self._encoding.decode_single_token_bytes(token_id))
        except (KeyError, OverflowError):
            return None

    def _encode_ordinary(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in _cut(text):
            check_clock()
            ids += self._encoding.encode_ordinary(part)
        return ids


def _cut(text: str) -> Iterator[str]:
    for start in range(0, len(text), _MAX_CHARS):
        chunk = text[start : start + _MAX_CHARS]
        end = 0
        for run in _LONG_RUN.finditer(chunk):
            yield chunk[end : run.end()]
            end = run.end()
        yield chunk[end:]


def _read_ranks(file: Path) -> dict[bytes, int]:
    """Each line is a token in base64 and its rank, which is its id."""
    try:
        pairs = (line.split() for line in read_bytes(file).splitlines() if line)
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except ValueError as error:
        raise CheckpointError(f"cannot load {file}: {error}") from None
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise CheckpointError(f"cannot load {file}: its ranks are not 0 to {len(ranks) - 1}, each once")
    if lacking := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise CheckpointError(f"cannot load {file}: it has no token for the byte {lacking[0]:#04x}")
    return ranks


def _added_tokens(file: Path, num_ranks: int) -> Iterable[AddedToken]:
    """The reserved ids, with the names that tokenizer_config.json gives them. White space beside them is
    never part of them, whatever it says."""
    end = num_ranks + NUM_RESERVED
    tokens = {
        token_id: AddedToken(token_id, f"<|reserved_token_{token_id}|>", False, False, False)
        for token_id in range(num_ranks, end)
    }
    for entry in missing_added_tokens(file.parent, {}):
        if entry.id not in tokens:
            other = f"added tokens have the ids {num_ranks} to {end - 1}"
            raise contradiction(file.parent / "tokenizer_config.json", entry, other)
        tokens[entry.id] = AddedToken(entry.id, entry.content, entry.special, False, False)
    return tokens.values()


def _refuse_unknown_class(config_file: Path) -> None:
    config = read_json(config_file)
    auto_map = config.get("auto_map") or {}
    named = auto_map.get("AutoTokenizer") if isinstance(auto_map, dict) else auto_map
    name = (named[0] if isinstance(named, list) and named else named) or config.get("tokenizer_class")
    # A name of another repository comes before `--`.
    if str(name).rpartition("--")[2] not in (*KNOWN_CLASSES, "TikTokenTokenizer"):
        raise CheckpointError(
            f"{config_file} names the tokenizer {name!r}, whose Python code is not run; known for a "
            f"tiktoken.model: {' and '.join(KNOWN_CLASSES)}"
        )
