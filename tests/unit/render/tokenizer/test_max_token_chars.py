"""How many characters one token can stand for: long texts are refused by it, so it is never too small."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from services.render.tokenizer.choice import TokenizerName
from services.render.tokenizer.tokenizer import Tokenizer
from tests.support.render_models import (
    DEMO_MODEL,
    deepseek_tokenizer_,
    demo_tokenizer,
    make_folder,
    write_tiktoken_folder,
)
from tests.unit.render.tokenizer.test_choice import sentencepiece_like
from tests.unit.render.tokenizer.tokenizer_fuzz import Texts


def tiktoken_tokenizer(folder: Path) -> Tokenizer:
    write_tiktoken_folder(folder, {0: {"content": "<|a rather long added token|>", "special": True}})
    return Tokenizer(folder / "tiktoken.model")


@pytest.mark.parametrize(
    "load", [lambda _: demo_tokenizer(), lambda _: deepseek_tokenizer_(), tiktoken_tokenizer]
)
def test_no_text_has_more_characters_than_its_tokens_can_stand_for(
    load: Callable[[Path], Tokenizer], tmp_path: Path
) -> None:
    tokenizer = load(tmp_path)
    most = tokenizer.max_token_chars
    assert most is not None
    added = sorted(tokenizer.control_tokens.texts)
    for text in [*islice(Texts(5, added), 1000), *(char * 4096 for char in " \n.-=a汉"), *added]:
        ids = tokenizer.encode(text, add_special_tokens=False, field="text")
        assert len(text) <= most * len(ids)
    spelled = [tokenizer.token(each) or "" for each in range(130_000)]
    assert most == max(map(len, spelled)), "it is one of them"


def test_both_libraries_say_the_same() -> None:
    reference = Tokenizer(DEMO_MODEL / "tokenizer.json", TokenizerName.TOKENIZERS)
    assert reference.max_token_chars == demo_tokenizer().max_token_chars == len("<｜begin▁of▁sentence｜>")


def with_spaces(side: str) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["added_tokens"][-1].update({side: True})


def without_a_byte(content: dict[str, Any]) -> None:
    """A byte that stands in no text is one of the vocabulary's all the same."""
    vocabulary = content["model"]["vocab"]
    vocabulary["unused"] = vocabulary.pop("ÿ")


@pytest.mark.parametrize(
    "change",
    [
        with_spaces("lstrip"),
        with_spaces("rstrip"),
        without_a_byte,
        lambda content: content.update(normalizer={"type": "NFC"}),
        lambda content: content.update(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]}),
    ],
)
def test_there_is_no_bound_where_one_token_can_stand_for_any_number(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    folder = make_folder(tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    for name in (TokenizerName.AUTO, TokenizerName.TOKENIZERS):
        assert Tokenizer(folder / "tokenizer.json", name).max_token_chars is None


def test_there_is_none_for_another_kind_of_vocabulary(tmp_path: Path) -> None:
    assert Tokenizer(sentencepiece_like(tmp_path)).max_token_chars is None
