"""What does not fit together in a model's folder is a warning; --chat-template replaces its templates."""

from pathlib import Path
from typing import Any

import pytest
from triptych.v1 import render_pb2

from services.render.config import RenderConfig
from services.render.loading import load_renderer
from shared.config import ConfigError
from tests.support.render_models import DEMO_MODEL, TEMPLATES, TEMPLATES_WITHOUT_TOOLS, make_folder


def warnings_of(folder: Path) -> tuple[str, ...]:
    return load_renderer(RenderConfig(model=folder)).warnings


@pytest.mark.parametrize("style", sorted(TEMPLATES.keys() - TEMPLATES_WITHOUT_TOOLS))
def test_a_folder_in_order_gives_no_warning(style: str, tmp_path: Path) -> None:
    assert warnings_of(DEMO_MODEL) == ()
    assert warnings_of(make_folder(tmp_path, tokenizer_config={"chat_template": TEMPLATES[style]})) == ()


@pytest.mark.parametrize("value", [None, ""])
def test_a_special_token_that_the_template_prints_and_nobody_sets(value: str | None, tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}{% endfor %}{{ tools }}"
    )
    folder = make_folder(tmp_path, tokenizer_config={"bos_token": value, "chat_template": template})
    (warning,) = warnings_of(folder)
    assert warning.startswith("the chat template prints bos_token, which no file")


def test_a_vocabulary_that_the_model_cannot_read(tmp_path: Path) -> None:
    folder = make_folder(
        tmp_path, config={"vocab_size": 1000}, tokenizer_config={"chat_template": TEMPLATES["deepseek_v3"]}
    )
    (warning,) = warnings_of(folder)
    assert warning.startswith("vocab_size is 1000 in ")


@pytest.mark.parametrize("style", sorted(TEMPLATES_WITHOUT_TOOLS))
def test_what_the_template_cannot_do_is_said(style: str, tmp_path: Path) -> None:
    warnings = warnings_of(make_folder(tmp_path, tokenizer_config={"chat_template": TEMPLATES[style]}))
    assert [sentence.split(":")[0] for sentence in warnings] == [
        "the chat template leaves out tool messages",
        "the chat template leaves out tool calls of earlier turns",
        "the chat template leaves out tool definitions",
    ]


def test_a_template_for_tools_is_not_missed_in_the_one_without(tmp_path: Path) -> None:
    shown = "{% for m in messages %}{{ m }}{% endfor %}"
    named = [{"name": "default", "template": shown}, {"name": "tool_use", "template": shown + "{{ tools }}"}]
    assert warnings_of(make_folder(tmp_path, tokenizer_config={"chat_template": named})) == ()


def render(folder: Path, chat_template: Path | None = None, **fields: Any) -> str:
    config = RenderConfig(model=folder, chat_template=chat_template)
    request = render_pb2.RenderChatRequest(
        messages=[render_pb2.ChatMessage(role="user", content="Hi")], return_prompt_text=True, **fields
    )
    return load_renderer(config).renderer.render_chat(request).prompt_text


@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"])
def test_a_file_takes_the_place_of_all_the_folder_s_templates(name: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", tokenizer_config={"chat_template": "config: {{ messages }}"})
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("{% broken")
    file = tmp_path / "own.jinja"
    file.write_text("own{{ messages[0].content }}{{ tools }}")
    assert render(folder, file) == "ownHiNone"
    assert render(folder, file, tools_json=['{"a": 1}']) == "ownHi[{'a': 1}]"


def test_a_file_makes_a_chat_model_of_a_folder_without_templates(tmp_path: Path) -> None:
    folder, file = make_folder(tmp_path / "model"), tmp_path / "own.jinja"
    file.write_text("{{ messages[0].content }}")
    assert load_renderer(RenderConfig(model=folder, chat_template=file)).renderer.model.chat_templates
    assert render(folder, file) == "Hi"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"\xff", "not UTF-8"),
        (b"a\n{% if %}", "line 2"),
        (b"{{ x | no_such_filter }}", "no_such_filter"),
    ],
)
def test_a_file_that_is_no_template_is_one_line_with_the_flag_s_name(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "own.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_renderer(RenderConfig(chat_template=file))
    assert str(caught.value).startswith("--chat-template")
    assert str(file) in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
