"""The fast library is used where it is exact, and the reference where it is not."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as TokenizerFile
from tokenizers import decoders, models, pre_tokenizers

from services.render.tokenizer.choice import TokenizerName, self_test_texts
from services.render.tokenizer.fastokens import FastokensLibrary
from services.render.tokenizer.library import TokenizersLibrary
from services.render.tokenizer.reference import ReferenceProcess, answer
from services.render.tokenizer.tokenizer import Tokenizer
from shared.config import ConfigError
from tests.support.render_models import demo_tokenizer
from tests.unit.render.tokenizer.tokenizer_fuzz import FILES, compare

DEMO_FILE = FILES["demo"]


def sentencepiece_like(folder: Path) -> Path:
    """A file that gives text back, with another decoder."""
    alphabet = [*map(chr, range(0x20, 0x7F)), *[f"<0x{byte:02X}>" for byte in range(256)], "▁"]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(alphabet))}
    file = TokenizerFile(models.BPE(vocabulary, [], byte_fallback=True))
    file.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    file.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    file.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_both_libraries_give_the_same_ids(file: Path) -> None:
    count, differing = compare(file, 400_000)
    assert count > 100
    assert differing == []


def test_the_fast_library_is_chosen_where_it_is_exact() -> None:
    tokenizer = demo_tokenizer()
    assert tokenizer.name is TokenizerName.FASTOKENS
    assert "equal" in tokenizer.reason


def test_each_library_can_be_asked_for() -> None:
    text = "Grüße <｜User｜> 你好"
    ids = demo_tokenizer().encode(text, add_special_tokens=False, field="text")
    for name in (TokenizerName.FASTOKENS, TokenizerName.TOKENIZERS):
        tokenizer = Tokenizer(DEMO_FILE, name)
        assert (tokenizer.name, tokenizer.reason) == (name, "asked for")
        assert tokenizer.encode(text, add_special_tokens=False, field="text") == ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert tokenizer.decoder == demo_tokenizer().decoder
        assert tokenizer.special_token_ids == demo_tokenizer().special_token_ids
        assert set(tokenizer.control_tokens.texts) == set(demo_tokenizer().control_tokens.texts)


def test_a_file_of_another_kind_is_left_to_the_reference(tmp_path: Path) -> None:
    file = sentencepiece_like(tmp_path)
    tokenizer = Tokenizer(file)
    assert tokenizer.name is TokenizerName.TOKENIZERS
    assert tokenizer.reason
    with pytest.raises(ConfigError, match="fastokens"):
        Tokenizer(file, TokenizerName.FASTOKENS)


@pytest.mark.parametrize("wrong", [[0], []])
def test_one_wrong_id_in_the_self_test_turns_to_the_reference(
    wrong: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = FastokensLibrary.encode
    text = self_test_texts()[-2]

    def encode_wrongly(self: FastokensLibrary, each: str, *, add_special_tokens: bool) -> list[int]:
        return wrong if each == text else encode(self, each, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(FastokensLibrary, "encode", encode_wrongly)
    tokenizer = Tokenizer(DEMO_FILE)
    assert tokenizer.name is TokenizerName.TOKENIZERS
    assert "not those of tokenizers" in tokenizer.reason
    with pytest.raises(ConfigError, match="not those of tokenizers"):
        Tokenizer(DEMO_FILE, TokenizerName.FASTOKENS)


def test_the_reference_process_answers_as_the_library_here_does() -> None:
    texts = self_test_texts()
    assert ReferenceProcess(DEMO_FILE).ask(texts) == answer(DEMO_FILE, lambda: texts)


@pytest.mark.parametrize(
    ("name", "loaded", "absent"),
    [("auto", "fastokens", "tokenizers"), ("tokenizers", "tokenizers", "fastokens")],
)
def test_a_process_loads_one_library(name: str, loaded: str, absent: str) -> None:
    script = (
        "import json, sys; from pathlib import Path\n"
        "from services.render.tokenizer.choice import *\n"
        "from services.render.tokenizer.tokenizer import Tokenizer\n"
        f"Tokenizer(Path({str(DEMO_FILE)!r}), TokenizerName({name!r})); print(json.dumps(list(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    modules = set(json.loads(output))
    assert loaded in modules
    assert not modules & {absent, "transformers", "torch"}


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_both_libraries_decode_alike(file: Path) -> None:
    libraries: list[Any] = [FastokensLibrary(file), TokenizersLibrary(file)]
    texts = [*self_test_texts(), "\ufffd"]
    for text in texts:
        ids = libraries[1].encode(text, add_special_tokens=False)
        for cut in (ids, ids[1:], ids[::-1], [*ids, 2**32 - 1, 129_279] * 2):
            for skips in (False, True):
                first, second = (each.decode(cut, skip_special_tokens=skips) for each in libraries)
                assert first == second


def test_a_repeated_history_comes_from_a_cache_that_stays_small() -> None:
    library: Any = FastokensLibrary(DEMO_FILE)
    chooser = random.Random(0)
    history = [f"<｜User｜>{chooser.getrandbits(40_000):x}" for _ in range(100)]
    ids = library.encode("".join(history[:50]), add_special_tokens=False)
    before = library._tokenizer.segment_cache_stats()
    assert library.encode("".join([*history[:50], history[50]]), add_special_tokens=False)[: len(ids)] == ids
    after = library._tokenizer.segment_cache_stats()
    assert (after["hits"] - before["hits"], after["misses"] - before["misses"]) == (50, 1)
    for size in (1_000, 30_000, 100_000, 1_000_000) * 4:
        library.encode(f"<｜User｜>{chooser.getrandbits(4 * size):x}", add_special_tokens=False)
    assert 0 < library._tokenizer.segment_cache_stats()["bytes"] <= 32 * 1024 * 1024
