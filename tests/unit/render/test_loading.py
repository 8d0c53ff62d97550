"""What a model's folder has that cannot be meant so is said, and nothing of a folder in order."""

from pathlib import Path

import pytest

from services.render.config import RenderConfig
from services.render.loading import load_renderer
from tests.support.render_models import DEMO_MODEL, TEMPLATES, make_folder


def doubts_of(folder: Path) -> tuple[str, ...]:
    return load_renderer(RenderConfig(model=folder)).doubts


@pytest.mark.parametrize("style", TEMPLATES)
def test_a_folder_in_order_raises_no_doubt(style: str, tmp_path: Path) -> None:
    assert doubts_of(DEMO_MODEL) == ()
    assert doubts_of(make_folder(tmp_path, tokenizer_config={"chat_template": TEMPLATES[style]})) == ()


@pytest.mark.parametrize("value", [None, ""])
def test_a_special_token_that_the_template_prints_and_nobody_sets(value: str | None, tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    folder = make_folder(tmp_path, tokenizer_config={"bos_token": value, "chat_template": template})
    (doubt,) = doubts_of(folder)
    assert doubt.startswith("the chat template prints bos_token, which no file")


def test_a_vocabulary_that_the_model_cannot_read(tmp_path: Path) -> None:
    folder = make_folder(
        tmp_path, config={"vocab_size": 1000}, tokenizer_config={"chat_template": TEMPLATES["deepseek_v3"]}
    )
    (doubt,) = doubts_of(folder)
    assert doubt.startswith("vocab_size is 1000 in ")
