"""The files of a model folder's tokenizer, read alike by the worker and by the render service."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shared.model_files import CheckpointError, read_bytes, read_json

# The first one that is there is the tokenizer.
TOKENIZER_JSON = "tokenizer.json"
TIKTOKEN_MODEL = "tiktoken.model"


@dataclass(frozen=True)
class AddedTokenEntry:
    """A token of tokenizer_config.json's added_tokens_decoder, with the fields of tokenizer.json."""

    id: int
    content: str
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool


def find_tokenizer_file(folder: Path) -> Path:
    """tokenizer.json, or else tiktoken.model. CheckpointError if there is neither."""
    for name in (TOKENIZER_JSON, TIKTOKEN_MODEL):
        if (folder / name).is_file():
            return folder / name
    raise CheckpointError(f"the model folder {folder} has no {TOKENIZER_JSON} and no {TIKTOKEN_MODEL}")


def missing_added_tokens(folder: Path, known: Mapping[int, str]) -> list[AddedTokenEntry]:
    """What added_tokens_decoder of tokenizer_config.json adds to the tokens that are known by id, rising.

    CheckpointError if the file cannot be read, or contradicts what is known.
    """
    path = folder / "tokenizer_config.json"
    declared = read_json(path, required=False).get("added_tokens_decoder") or {}
    entries = _entries(path, declared)
    id_of = {content: token_id for token_id, content in known.items()}
    for entry in entries:
        if known.get(entry.id, entry.content) != entry.content:
            raise contradiction(path, entry, f"token {entry.id} is {known[entry.id]!r}")
        if id_of.get(entry.content, entry.id) != entry.id:
            raise contradiction(path, entry, f"{entry.content!r} is token {id_of[entry.content]}")
    return [entry for entry in entries if entry.id not in known]


def contradiction(path: Path, entry: AddedTokenEntry, other: str) -> CheckpointError:
    """The error for an added token that is another one in the tokenizer's own file."""
    return CheckpointError(
        f"{path}: added_tokens_decoder says that token {entry.id} is {entry.content!r}, "
        f"but by the tokenizer's file {other}"
    )


def tokenizer_fingerprint(folder: Path) -> str:
    """ModelInfo.tokenizer_fingerprint: SHA-256 as 64 hexadecimal digits; "" if there is no tokenizer.

    Over the content of tokenizer.json in one canonical form (keys sorted, no spaces, ASCII), so that a file
    written again by another library keeps its fingerprint; over the bytes of a tiktoken.model. The added
    tokens are part of it, also those that only tokenizer_config.json has; the chat template is not.
    CheckpointError if a file cannot be read.
    """
    try:
        file = find_tokenizer_file(folder)
    except CheckpointError:
        return ""
    if file.name == TOKENIZER_JSON:
        content = read_json(file)
        added_tokens = content.get("added_tokens") or []
        known = {token["id"]: token["content"] for token in added_tokens}
    else:
        content = {"tiktoken": hashlib.sha256(read_bytes(file)).hexdigest()}
        added_tokens, known = [], {}
    if missing := missing_added_tokens(folder, known):
        content["added_tokens"] = [*added_tokens, *map(asdict, missing)]
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _entries(path: Path, declared: Any) -> list[AddedTokenEntry]:
    try:
        entries = [_entry(int(token_id), fields) for token_id, fields in declared.items()]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path}: added_tokens_decoder is not an object of tokens by id") from None
    return sorted(entries, key=lambda entry: entry.id)


def _entry(token_id: int, fields: dict[str, Any]) -> AddedTokenEntry:
    """Absent flags are as transformers has them."""
    special = bool(fields.get("special", False))
    flags = {name: bool(fields.get(name, False)) for name in ("single_word", "lstrip", "rstrip")}
    normalized = bool(fields.get("normalized", not special))
    return AddedTokenEntry(token_id, str(fields["content"]), **flags, normalized=normalized, special=special)
