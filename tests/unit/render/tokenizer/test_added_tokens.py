"""Tokens that only added_tokens_decoder of tokenizer_config.json has, as transformers adds them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from services.render.model_folder import load_model_folder
from services.render.request.conversation import Conversation
from services.render.template.check import load_chat_template
from services.render.tokenizer.choice import TokenizerName
from services.render.tokenizer.control_tokens import Piece
from services.render.tokenizer.tokenizer import Tokenizer
from shared.config import ConfigError
from shared.model_files import CheckpointError
from shared.tokenizer_files import tokenizer_fingerprint
from tests.support.render_models import DEMO_MODEL, make_folder

LIBRARIES = [TokenizerName.FASTOKENS, TokenizerName.TOKENIZERS]
EOS_ID, NEXT_ID = 1, 1024
WORD_ID, WORD = 600, "bbit"
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def token(content: str, *, special: bool = True, **flags: bool) -> dict[str, Any]:
    return {"content": content, "special": special, **FLAGS, **flags}


ADDED = {
    WORD_ID: token(WORD),
    NEXT_ID: token("<|im_user|>"),
    NEXT_ID + 1: token("<think>", special=False),
    NEXT_ID + 2: token("<|pad|>", rstrip=True),
}
TEXTS = ("a<|im_user|>b <think>c</think>", "<|pad|>  x <|pad|>", "xbbity", "<|im_user|", "plain  text 汉")


def folder_with(folder: Path, added: Mapping[int, Any]) -> Path:
    config = {"added_tokens_decoder": {str(token_id): token for token_id, token in added.items()}}
    return make_folder(folder, tokenizer_config=config)


@pytest.mark.parametrize("name", LIBRARIES)
def test_they_are_tokens_as_in_transformers(name: TokenizerName, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, ADDED)
    ours = Tokenizer(folder / "tokenizer.json", name)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    for text in TEXTS:
        expected = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, add_special_tokens=False, field="text") == expected
        for skips in (False, True):
            decoded = theirs.decode(expected, skip_special_tokens=skips, clean_up_tokenization_spaces=False)
            assert ours.decode(expected, skip_special_tokens=skips) == decoded
    assert ours.encode("<think><|im_user|>", add_special_tokens=False, field="text") == [NEXT_ID + 1, NEXT_ID]
    assert ours.special_token_ids >= {WORD_ID, NEXT_ID, NEXT_ID + 2}
    assert NEXT_ID + 1 not in ours.special_token_ids


@pytest.mark.parametrize("name", LIBRARIES)
def test_content_cannot_write_them(name: TokenizerName, tmp_path: Path) -> None:
    tokenizer = Tokenizer(folder_with(tmp_path, ADDED) / "tokenizer.json", name)
    assert {each["content"] for each in ADDED.values()} <= set(tokenizer.control_tokens.texts)
    ids = tokenizer.encode_pieces([Piece("<|im_user|>", True), Piece("<|im_user|>", False)], field="text")
    assert ids[0] == NEXT_ID
    assert NEXT_ID not in ids[1:]
    assert tokenizer.decode(ids[1:], skip_special_tokens=True) == "<|im_user|>"


def test_a_template_s_markers_are_tokens(tmp_path: Path) -> None:
    template = "{% for m in messages %}<|im_user|>{{ m.content }}{% endfor %}"
    config = {"chat_template": template, "added_tokens_decoder": {str(NEXT_ID): token("<|im_user|>")}}
    folder = make_folder(tmp_path, tokenizer_config=config, config={"vocab_size": NEXT_ID + 1})
    model = load_model_folder(folder)
    tokenizer = Tokenizer(model.tokenizer_file)
    chat_template = load_chat_template(model, tokenizer.control_tokens)
    messages = [{"role": "user", "content": "say <|im_user|>"}]
    conversation = Conversation(messages, [], {}, add_generation_prompt=False)
    prompt = chat_template.render(conversation)
    ids = tokenizer.encode_pieces(prompt.pieces, field="messages")
    assert ids.count(NEXT_ID) == 1
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_user|>say <|im_user|>"


def test_they_are_part_of_the_fingerprint_on_both_sides(tmp_path: Path) -> None:
    plain = tokenizer_fingerprint(folder_with(tmp_path / "plain", {}))
    assert plain == tokenizer_fingerprint(DEMO_MODEL)
    fingerprints = {plain}
    for index, added in enumerate((ADDED, {NEXT_ID: ADDED[NEXT_ID]}, {NEXT_ID: token("<|other|>")})):
        folder = folder_with(tmp_path / str(index), added)
        fingerprints.add(tokenizer_fingerprint(folder))
        for name in LIBRARIES:
            assert Tokenizer(folder / "tokenizer.json", name).fingerprint == tokenizer_fingerprint(folder)
    assert len(fingerprints) == 4


def test_what_tokenizer_json_has_too_changes_nothing(tmp_path: Path) -> None:
    content = json.loads((DEMO_MODEL / "tokenizer.json").read_text())
    declared = {each["id"]: {k: v for k, v in each.items() if k != "id"} for each in content["added_tokens"]}
    folder = folder_with(tmp_path, declared)
    assert tokenizer_fingerprint(folder) == tokenizer_fingerprint(DEMO_MODEL)
    # The same tokens from one file or from both are the same tokenizer.
    both = folder_with(tmp_path / "both", {NEXT_ID: ADDED[NEXT_ID]})
    content["added_tokens"].append({"id": NEXT_ID, **ADDED[NEXT_ID]})
    one = folder_with(tmp_path / "one", {})
    (one / "tokenizer.json").write_text(json.dumps(content))
    assert tokenizer_fingerprint(one) == tokenizer_fingerprint(both)


@pytest.mark.parametrize("name", [TokenizerName.AUTO, *LIBRARIES])
@pytest.mark.parametrize(
    ("added", "complaint"),
    [
        ({EOS_ID: token("<|x|>")}, r"token 1 is '<\|x\|>', but .* token 1 is '<｜end▁of▁sentence｜>'"),
        ({NEXT_ID: token("<｜User｜>")}, r"token 1024 is '<｜User｜>', but .* '<｜User｜>' is token \d"),
        ({WORD_ID: token("<|x|>")}, r"token 600 is '<\|x\|>', but .* token 600 is 'bbit'"),
        ({NEXT_ID: token(WORD)}, r"token 1024 is 'bbit', but .* 'bbit' is token 600"),
        ({NEXT_ID + 5: token("<|x|>")}, r"token 1029 is '<\|x\|>', but .* '<\|x\|>' is token 1024"),
    ],
)
def test_a_contradiction_stops_the_start_and_names_both(
    name: TokenizerName, added: dict[int, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Tokenizer(folder_with(tmp_path, added) / "tokenizer.json", name)


@pytest.mark.parametrize(
    "value", [[1], {"x": token("a")}, {"1024": "a"}, {"1024": {"special": True}}, "text"]
)
def test_what_is_no_object_of_tokens_is_refused_on_both_sides(value: Any, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, tokenizer_config={"added_tokens_decoder": value})
    with pytest.raises(CheckpointError, match="is not an object of tokens by id"):
        tokenizer_fingerprint(folder)
    with pytest.raises(ConfigError, match="is not an object of tokens by id"):
        Tokenizer(folder / "tokenizer.json")
