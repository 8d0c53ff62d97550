"""A folder with a tiktoken.model: the ids of the checkpoint's own code, and one fingerprint on both sides."""

import base64
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from triptych.v1 import render_pb2

from services.render.config import RenderConfig
from services.render.loading import load_renderer
from services.render.output.detokenizer import DetokenizerFactory
from services.render.time_limit import time_limit
from services.render.tokenizer.choice import TokenizerName, self_test_texts
from services.render.tokenizer.control_tokens import Piece
from services.render.tokenizer.tiktoken import KNOWN_CLASSES
from services.render.tokenizer.tokenizer import Tokenizer
from shared.config import ConfigError
from shared.tokenizer_files import tokenizer_fingerprint
from tests.support.render_models import DEMO_MODEL, TEMPLATES, write_tiktoken_folder
from tests.unit.render.tokenizer.bystander import bystander_share
from tests.unit.render.tokenizer.tokenizer_fuzz import Texts

ADDED: dict[int, dict[str, Any]] = {
    0: {"content": "[BOS]", "special": True},
    2: {"content": "<|im_end|>", "special": True},
    11: {"content": "<|tool_call_begin|>", "special": False},
}
# As tokenization_kimi.py writes it.
PATTERN = "|".join([
    r"""[\p{Han}]+""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+""",
])  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kimi")
    write_tiktoken_folder(folder, ADDED)
    return folder


@pytest.fixture(scope="module")
def theirs(folder: Path) -> tiktoken.Encoding:
    """Put together as the checkpoint's own code does it."""
    lines = (folder / "tiktoken.model").read_text().splitlines()
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines}
    names = {len(ranks) + each: token["content"] for each, token in ADDED.items()}
    ids = range(len(ranks), len(ranks) + 256)
    special = {names.get(each, f"<|reserved_token_{each}|>"): each for each in ids}
    return tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)


@pytest.fixture(scope="module")
def ours(folder: Path) -> Tokenizer:
    return Tokenizer(folder / "tiktoken.model")


def encode(tokenizer: Tokenizer, text: str, *, has_control: bool = True) -> list[int]:
    return tokenizer.encode_pieces([Piece(text, has_control)], field="text")


def test_the_ids_are_those_of_the_checkpoint_s_own_code(ours: Tokenizer, theirs: tiktoken.Encoding) -> None:
    added = sorted(theirs.special_tokens_set)
    texts = [*self_test_texts(), "x\u017f I'\u017f we'LL 你好吗hello 汉ab", *islice(Texts(3, added), 2000)]
    for text in texts:
        expected = theirs.encode(text, allowed_special="all")
        assert ours.encode(text, add_special_tokens=True, field="text") == expected
        assert encode(ours, text) == expected
        assert encode(ours, text, has_control=False) == theirs.encode_ordinary(text)
        assert ours.decode(expected, skip_special_tokens=False) == theirs.decode(expected) == text


def test_special_tokens_are_left_out_where_asked_and_no_others(
    ours: Tokenizer, theirs: tiktoken.Encoding
) -> None:
    first = theirs.n_vocab - 256
    text = f"[BOS]a<|tool_call_begin|>b<|reserved_token_{first + 1}|>c<|im_end|>"
    ids = encode(ours, text)
    assert [each for each in ids if each >= first] == [first, first + 11, first + 1, first + 2]
    kept = f"a<|tool_call_begin|>b<|reserved_token_{first + 1}|>c"
    assert ours.decode(ids, skip_special_tokens=True) == kept
    assert ours.decode([*ids, theirs.n_vocab, 2**32 - 1], skip_special_tokens=False) == text
    assert ours.token(theirs.n_vocab) is None
    assert set(ours.control_tokens.texts) == theirs.special_tokens_set


def test_text_comes_incrementally_as_it_does_at_once(ours: Tokenizer) -> None:
    factory = DetokenizerFactory(ours)
    for text in self_test_texts():
        ids = encode(ours, text)
        detokenizer = factory.create(skip_special_tokens=False)
        parts = [detokenizer.feed(each) for each in ids]
        assert "".join([*parts, detokenizer.flush()]) == text


def test_long_texts_are_cut_where_the_checkpoint_s_own_code_cuts_them(
    ours: Tokenizer, theirs: tiktoken.Encoding
) -> None:
    def joined(*parts: str) -> list[int]:
        return [each for part in parts for each in theirs.encode_ordinary(part)]

    run = 25_000
    assert encode(ours, "a" * run) == joined("a" * run)
    assert encode(ours, "a" * (2 * run + 3) + " ") == joined("a" * run, "a" * run, "aaa ")
    assert encode(ours, "b " + " " * run + "c") == joined("b " + " " * (run - 1), " c")
    words = "some words " * 40_000
    assert encode(ours, words) == joined(words[:400_000], words[400_000:])
    assert encode(ours, words) != joined(words)
    in_two = encode(ours, words[:300_000] + "<|im_end|>" + words[300_000:600_000])
    assert in_two == [*joined(words[:300_000]), theirs.n_vocab - 254, *joined(words[300_000:600_000])]


def test_a_long_text_ends_at_the_next_cut_once_its_time_is_over(ours: Tokenizer) -> None:
    with pytest.raises(TimeoutError), time_limit(-1, TimeoutError()):
        encode(ours, "a" * 1_000_000)


def test_render_and_worker_name_it_alike_and_added_tokens_are_part_of_the_name(
    ours: Tokenizer, folder: Path, tmp_path: Path
) -> None:
    assert ours.fingerprint == tokenizer_fingerprint(folder)
    write_tiktoken_folder(tmp_path, ADDED)
    assert tokenizer_fingerprint(tmp_path) == ours.fingerprint
    write_tiktoken_folder(tmp_path, {**ADDED, 3: {"content": "<|new|>", "special": True}})
    assert tokenizer_fingerprint(tmp_path) != ours.fingerprint
    write_tiktoken_folder(tmp_path, ADDED)
    with (tmp_path / "tiktoken.model").open("ab") as file:
        file.write(b"\n")
    assert tokenizer_fingerprint(tmp_path) != ours.fingerprint


@pytest.mark.parametrize("name", [*KNOWN_CLASSES, "moonshotai/Kimi-K2--" + KNOWN_CLASSES[0]])
def test_known_classes_are_read(name: str, folder: Path, tmp_path: Path) -> None:
    assert (
        with_config(folder, tmp_path, auto_map={"AutoTokenizer": [name, None]}).name is TokenizerName.TIKTOKEN
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]}},
        {"auto_map": {"AutoTokenizer": ["tokenization_other.TikTokenTokenizer", None]}},
        {"auto_map": None, "tokenizer_class": "QWenTokenizer"},
        {"auto_map": None, "tokenizer_class": None},
    ],
)
def test_another_class_is_refused_by_its_name(changes: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"names the tokenizer .*whose Python code is not run; known for"):
        with_config(folder, tmp_path, **changes)


def with_config(folder: Path, other: Path, **changes: Any) -> Tokenizer:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps({**config, **changes}))
    (other / "tiktoken.model").write_bytes((folder / "tiktoken.model").read_bytes())
    return Tokenizer(other / "tiktoken.model")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"IQ== 0\nIQ==", "cannot load"),
        (b"I!Q== 0\n", "cannot load"),
        (b"IQ== one\n", "cannot load"),
        (b"IQ== 1\n", "ranks are not 0 to 0"),
        (b"IQ== 0\n", "no token for the byte 0x00"),
        (b"", "no token for the byte 0x00"),
    ],
)
def test_broken_ranks_stop_the_start(content: bytes, complaint: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes((folder / "tokenizer_config.json").read_bytes())
    (tmp_path / "tiktoken.model").write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        Tokenizer(tmp_path / "tiktoken.model")


def test_an_added_token_with_the_id_of_another_kind_stops_the_start(tmp_path: Path) -> None:
    for distance in (-1, 256):
        write_tiktoken_folder(tmp_path, {distance: {"content": "<|x|>", "special": True}})
        with pytest.raises(ConfigError, match=r"is '<\|x\|>', but .* added tokens have the ids"):
            Tokenizer(tmp_path / "tiktoken.model")


def test_the_library_must_fit_the_file(folder: Path) -> None:
    assert Tokenizer(folder / "tiktoken.model", TokenizerName.TIKTOKEN).reason == "asked for"
    for file, name in (
        (folder / "tiktoken.model", TokenizerName.FASTOKENS),
        (folder / "tiktoken.model", TokenizerName.TOKENIZERS),
        (DEMO_MODEL / "tokenizer.json", TokenizerName.TIKTOKEN),
    ):
        with pytest.raises(ConfigError, match=f"cannot use {name} for .*: it reads "):
            Tokenizer(file, name)


def test_a_long_text_does_not_stop_other_threads(ours: Tokenizer) -> None:
    text = "x1 " * 1_000_000
    assert bystander_share(lambda: encode(ours, text)) > 0.3


def test_a_folder_as_published_renders_chats(tmp_path: Path) -> None:
    markers = ("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>")
    added = {index: {"content": marker, "special": True} for index, marker in enumerate(markers)}
    num_ranks = len(write_tiktoken_folder(tmp_path, added))
    config = {"max_position_embeddings": 2048, "vocab_size": num_ranks + 256, "eos_token_id": num_ranks + 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATES["kimi_k2"])
    renderer, tokenizer, *_ = load_renderer(RenderConfig(model=tmp_path))
    messages = [render_pb2.ChatMessage(role="user", content="say <|im_end|>")]
    rendered = renderer.render_chat(render_pb2.RenderChatRequest(messages=messages, return_prompt_text=True))
    ids = list(rendered.generate_request.prompt_token_ids)
    assert tokenizer.decode(ids, skip_special_tokens=False) == rendered.prompt_text
    own = rendered.prompt_text.replace("say <|im_end|>", "say ")
    assert [ids.count(num_ranks + index) for index in range(5)] == [own.count(each) for each in markers]
    assert rendered.generate_request.tokenizer_fingerprint == tokenizer_fingerprint(tmp_path)
