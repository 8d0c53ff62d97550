"""Which library tokenizes: the fast one where it is exact, found out at each start."""

import random
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from services.render.tokenizer.library import TokenizerLibrary, TokenizersLibrary
from services.render.tokenizer.reference import Reference, ReferenceProcess, encodings
from shared.model_files import CheckpointError
from shared.tokenizer_files import TIKTOKEN_MODEL, TOKENIZER_JSON, tokenizer_fingerprint

if TYPE_CHECKING:
    from services.render.tokenizer.tiktoken import TiktokenLibrary


class TokenizerName(StrEnum):
    """Values of --tokenizer."""

    AUTO = "auto"
    FASTOKENS = "fastokens"
    TOKENIZERS = "tokenizers"
    TIKTOKEN = "tiktoken"


# What each library reads here.
_READS = {
    TokenizerName.FASTOKENS: TOKENIZER_JSON,
    TokenizerName.TOKENIZERS: TOKENIZER_JSON,
    TokenizerName.TIKTOKEN: TIKTOKEN_MODEL,
}


class LoadedTokenizer(NamedTuple):
    """A library with the file in it."""

    library: TokenizerLibrary
    name: TokenizerName
    # Why this one.
    reason: str
    # As Reference's.
    fingerprint: str
    decoder: dict[str, Any]
    max_token_chars: int | None


def load_library(file: Path, name: TokenizerName) -> LoadedTokenizer:
    """file: a folder's tokenizer.json or tiktoken.model.

    Raises CheckpointError if it cannot be loaded, or not with the library asked for.
    """
    asked_for = "asked for" if name is not TokenizerName.AUTO else ""
    if asked_for and _READS[name] != file.name:
        raise CheckpointError(f"cannot use {name} for {file}: it reads {_READS[name]}")
    if file.name == TIKTOKEN_MODEL:
        # Imported only where it is used, as the other ones are.
        from services.render.tokenizer.tiktoken import TiktokenLibrary

        return _loaded(TiktokenLibrary(file), file, TokenizerName.TIKTOKEN, asked_for or "for this file")
    if name is TokenizerName.TOKENIZERS:
        return _loaded(TokenizersLibrary(file), file, name, asked_for)
    reference = ReferenceProcess(file)
    library, reason = _try_fastokens(file)
    answers = reference.ask(self_test_texts())
    if library is not None and not (reason := _difference(library, answers)):
        return LoadedTokenizer(
            library,
            TokenizerName.FASTOKENS,
            asked_for or "equal to tokenizers in the self-test",
            answers.fingerprint,
            answers.decoder,
            answers.max_token_chars,
        )
    if name is TokenizerName.FASTOKENS:
        raise CheckpointError(f"cannot use fastokens for {file}: {reason}")
    return _loaded(TokenizersLibrary(file), file, TokenizerName.TOKENIZERS, reason)


def self_test_texts() -> list[str]:
    """What both libraries must make the same ids of: the same texts at every start."""
    chooser = random.Random(0)
    ranges = [(0x20, 0x7F), (0x80, 0x800), (0x4E00, 0x9FFF), (0xE000, 0xFFFE), (0x1F300, 0x1FAFF)]
    mixed = [
        "".join(chr(chooser.randrange(*chooser.choice(ranges))) for _ in range(size)) for size in range(1, 60)
    ]
    runs = [char * size for char in " \n\t\r\u3000a1汉👍!=-" for size in (1, 2, 3, 7, 64)]
    markers = "a<｜User｜>b <think>\n</think><｜end▁of▁sentence｜> <|im_end|>[gMASK]<sop>"
    return [*_WRITTEN, *mixed, *runs, markers, "".join([*_WRITTEN, *mixed, *runs, markers])]


_WRITTEN = (
    "two  spaces and   three, don't, I'LL, 1234567 3.14e-5",
    "lines\nof text\r\n\n\tand a tab \n  \n",
    "汉字とかな 한국어 ไทย हिन्दी",
    "naïve cafe\u0301, Ελληνικά, עברית العربية",
    "emoji 👩‍👩‍👧 and 🏳️‍🌈 \u200b\u00a0\u2028\ufeff",
    "def f(x):\n    return {'a': x ** 2, \"b\": [1, 2]}  # ok\n",
    '<div class="a">&amp;</div> https://example.org/?q=%20#x',
)


def _loaded(
    library: "TokenizersLibrary | TiktokenLibrary", file: Path, name: TokenizerName, reason: str
) -> LoadedTokenizer:
    fingerprint = tokenizer_fingerprint(file.parent)
    return LoadedTokenizer(library, name, reason, fingerprint, library.decoder, library.max_token_chars)


def _try_fastokens(file: Path) -> tuple[TokenizerLibrary | None, str]:
    """The library, or why there is none."""
    try:
        from services.render.tokenizer.fastokens import FastokensLibrary

        return FastokensLibrary(file), ""
    except (ImportError, ValueError, OSError, CheckpointError) as error:
        return None, f"fastokens cannot load the file: {error}"


def _difference(library: TokenizerLibrary, reference: Reference) -> str:
    """In which way it is not exact; empty if it is."""
    if reference.decoder.get("type") != "ByteLevel":
        return "the file's decoder is not byte-level"
    expected = (reference.ids, reference.ids_with_added, reference.ids_as_text)
    texts = self_test_texts()
    for ours, theirs in zip(encodings(library, texts), expected, strict=True):
        for text, our_ids, their_ids in zip(texts, ours, theirs, strict=True):
            if our_ids != their_ids:
                return f"the ids of {text[:40]!r} are not those of tokenizers"
    return ""
