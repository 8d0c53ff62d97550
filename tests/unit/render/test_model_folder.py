"""Reading a model folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from triptych.v1 import types_pb2

from services.render.model_folder import load_model_folder
from shared.config import ConfigError
from tests.support.render_models import DEMO_MODEL, make_folder


def test_the_embedded_model_is_read() -> None:
    model = load_model_folder(DEMO_MODEL)
    assert model.name == "demo_model"
    assert (model.max_model_len, model.vocab_size, model.eos_token_ids) == (2048, 1024, (1,))
    assert model.sampling_defaults == types_pb2.SamplingParams(temperature=0)
    assert model.special_tokens["bos_token"] == "<｜begin▁of▁sentence｜>"
    assert list(model.chat_templates) == ["default"]


def test_the_served_name_can_be_chosen(tmp_path: Path) -> None:
    assert load_model_folder(make_folder(tmp_path / "m"), "mine").name == "mine"
    assert load_model_folder(make_folder(tmp_path / "m")).name == "m"


@pytest.mark.parametrize(
    ("config", "generation_config", "expected"),
    [(1, None, (1,)), ([3, 1], 7, (1, 3, 7)), (None, [5], (5,)), (None, None, ()), (2, [2], (2,))],
)
def test_eos_ids_are_the_union_of_both_configs(
    tmp_path: Path, config: Any, generation_config: Any, expected: tuple[int, ...]
) -> None:
    folder = make_folder(
        tmp_path, config={"eos_token_id": config}, generation_config={"eos_token_id": generation_config}
    )
    assert load_model_folder(folder).eos_token_ids == expected


@pytest.mark.parametrize(
    ("generation_config", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        ({"do_sample": True, "temperature": 0.6}, {"temperature": 0.6}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        ({"top_k": 0, "top_p": None, "min_p": 0.0}, {"top_k": 0, "min_p": 0.0}),
        (
            {"repetition_penalty": 1.1, "max_new_tokens": 64, "num_beams": 4},
            {"repetition_penalty": 1.1, "max_tokens": 64},
        ),
    ],
)
def test_sampling_defaults_are_what_generation_config_sets(
    tmp_path: Path, generation_config: dict[str, Any], expected: dict[str, Any]
) -> None:
    folder = make_folder(tmp_path, generation_config=generation_config)
    assert load_model_folder(folder).sampling_defaults == types_pb2.SamplingParams(**expected)


def test_a_model_s_own_special_tokens_have_names_too(tmp_path: Path) -> None:
    config = {
        "image_token": "<img>", "add_bos_token": True, "video_token": {"content": "<video>"},
        "extra_special_tokens": {"audio": "<audio>"},
    }  # fmt: skip
    tokens = load_model_folder(make_folder(tmp_path, tokenizer_config=config)).special_tokens
    assert {"image_token": "<img>", "video_token": "<video>", "audio": "<audio>"}.items() <= tokens.items()
    assert "add_bos_token" not in tokens


def test_special_tokens_are_texts_or_objects_and_may_stand_in_their_own_file(tmp_path: Path) -> None:
    bos = {"__type": "AddedToken", "content": "<b>", "lstrip": False}
    folder = make_folder(tmp_path, tokenizer_config={"bos_token": bos, "unk_token": None})
    (folder / "special_tokens_map.json").write_text('{"bos_token": "<other>", "pad_token": "<p>"}')
    tokens = load_model_folder(folder).special_tokens
    assert tokens == {"bos_token": "<b>", "eos_token": "<｜end▁of▁sentence｜>", "pad_token": "<p>"}


def test_a_template_file_wins_over_both_forms_in_the_config(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    folder = make_folder(tmp_path, tokenizer_config={"chat_template": named})
    assert load_model_folder(folder).chat_templates == {"default": "D", "tool_use": "T"}
    folder = make_folder(tmp_path, tokenizer_config={"chat_template": "one"})
    assert load_model_folder(folder).chat_templates == {"default": "one"}
    (folder / "chat_template.jinja").write_text("file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert load_model_folder(folder).chat_templates == {"default": "file", "tool_use": "tools"}


def test_a_model_without_a_template_is_no_chat_model(tmp_path: Path) -> None:
    assert load_model_folder(make_folder(tmp_path)).chat_templates == {}


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("config.json", None, "does not exist"),
        ("config.json", "{", "is not JSON"),
        ("config.json", "[]", "holds list; allowed: a JSON object"),
        ("config.json", '{"vocab_size": 9}', "max_position_embeddings is missing"),
        (
            "config.json",
            '{"max_position_embeddings": 8, "vocab_size": "9"}',
            'vocab_size is "9"; allowed: integers from 1',
        ),
        ("generation_config.json", '{"eos_token_id": [1, "2"]}', "eos_token_id is"),
        ("tokenizer.json", None, "has no tokenizer.json and no tiktoken.model"),
        ("generation_config.json", '{"top_p": 2}', "top_p is 2"),
        ("generation_config.json", '{"temperature": "hot"}', "generation_config.json"),
        ("generation_config.json", '{"max_new_tokens": -1}', "generation_config.json"),
        ("tokenizer_config.json", '{"chat_template": [1]}', "neither a text nor a list"),
        ("tokenizer_config.json", '{"chat_template": 7}', "neither a text nor a list"),
        (
            "tokenizer_config.json",
            '{"chat_template": [{"name": "default", "template": null}]}',
            "neither a text nor a list",
        ),
        (
            "tokenizer_config.json",
            '{"chat_template": [{"name": 1, "template": "x"}]}',
            "neither a text nor a list",
        ),
        ("chat_template.jinja", b"\xff", "not UTF-8"),
    ],
)
def test_a_broken_folder_is_refused_with_one_clear_sentence(
    tmp_path: Path, name: str, content: str | bytes | None, complaint: str
) -> None:
    folder = make_folder(tmp_path / "model")
    file = folder / name
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_model_folder(folder)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_model_folder(tmp_path / "nowhere")


def test_weights_are_not_needed(tmp_path: Path) -> None:
    folder = tmp_path / "light"
    shutil.copytree(DEMO_MODEL, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.py", "__pycache__"))
    assert (
        json.loads((folder / "config.json").read_text())["vocab_size"] == load_model_folder(folder).vocab_size
    )
