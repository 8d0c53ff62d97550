"""The tokenizer's fingerprint, alike in the worker and the render service."""

import json
from pathlib import Path
from typing import Any

import pytest

from shared.model_files import CheckpointError
from shared.tokenizer_files import tokenizer_fingerprint


def test_a_folder_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    assert tokenizer_fingerprint(tmp_path) == ""


def test_it_is_the_contents_not_the_files(tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "added_tokens": [{"id": 3, "content": "<｜User｜>"}],
        "model": {"vocab": {"é": 0, "a": 1}},
    }
    reordered = {"model": {"vocab": {"a": 1, "é": 0}}, "added_tokens": content["added_tokens"]}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")
    fingerprint = tokenizer_fingerprint(tmp_path)
    assert len(fingerprint) == 64
    path.write_text(json.dumps(reordered))
    assert tokenizer_fingerprint(tmp_path) == fingerprint
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "other"}')
    assert tokenizer_fingerprint(tmp_path) == fingerprint
    content["added_tokens"][0]["id"] = 4
    path.write_text(json.dumps(content))
    assert tokenizer_fingerprint(tmp_path) != fingerprint


def test_a_broken_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not JSON"):
        tokenizer_fingerprint(tmp_path)
