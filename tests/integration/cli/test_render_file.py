"""`render-file` and `diff-render` as processes: files, pipes, exit codes."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import run
from tests.support.render_models import TEMPLATES, make_folder

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "shared" / "demo_model"


def body(content: str, **more: object) -> str:
    return json.dumps({"messages": [{"role": "user", "content": content}], **more}) + "\n"


def piped(text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The command with this on its standard input."""
    command = [sys.executable, "-m", "services.cli", *arguments]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    file = tmp_path / "conversations.jsonl"
    file.write_text(body("Hi") + "\n" + body("My name is 你", stop="x", max_tokens=3))
    return file


def test_a_file_and_standard_input_give_the_same_lines(conversations: Path, tmp_path: Path) -> None:
    golden = tmp_path / "golden.jsonl"
    result = run("render-file", str(conversations), "--output", str(golden))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    from_pipe = piped(conversations.read_text(), "render-file", "-")
    assert from_pipe.stdout == golden.read_text()
    requests = [json.loads(line) for line in from_pipe.stdout.splitlines()]
    assert not any("model" in request for request in requests), "a golden file fits any folder's name"
    assert requests[1]["sampling_params"]["max_tokens"] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["conversations.jsonl", "golden.jsonl"]


def test_the_prompt_s_text_and_the_served_name_are_written_where_asked_for(conversations: Path) -> None:
    result = run("render-file", str(conversations), "--text", "--served-model-name", "mine")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["model"] for line in lines] == ["mine", "mine"]
    assert "My name is 你" in lines[1]["prompt_text"]


def test_an_output_that_is_a_link_stays_one(conversations: Path, tmp_path: Path) -> None:
    golden, link = tmp_path / "golden.jsonl", tmp_path / "link"
    golden.write_text("old")
    link.symlink_to(golden)
    assert run("render-file", str(conversations), "--output", str(link)).returncode == 0
    assert link.is_symlink()
    assert golden.read_text().startswith("{")


def test_a_bad_line_is_named_and_leaves_the_old_output(conversations: Path, tmp_path: Path) -> None:
    golden = tmp_path / "golden.jsonl"
    golden.write_text("old")
    with conversations.open("a") as file:
        file.write(body("x", best_of=2))
    result = run("render-file", str(conversations), "--output", str(golden))
    assert result.returncode == 2
    assert result.stderr == f"triptych: {conversations}, line 4: the key 'best_of' is not known here\n"
    assert golden.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["conversations.jsonl", "golden.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["render-file", "/nowhere"], "cannot read /nowhere: No such file or directory"),
        (
            ["render-file", "-", "--output", "/nowhere/x"],
            "cannot write /nowhere/x: No such file or directory",
        ),
        (
            ["render-file", "-", "--chat-template", "/nowhere"],
            "--chat-template: /nowhere does not exist",
        ),
        (["render-file", "-", "--model", "/nowhere"], "the model folder /nowhere does not exist"),
        (["render-file"], "Missing argument 'CONVERSATIONS'."),
        (["diff-render", "/nowhere", "-"], "cannot read /nowhere: No such file or directory"),
        (["diff-render", "-"], "Missing argument 'SECOND'."),
        (["diff-render", "-", "-"], "only one of the two files can be standard input"),
        (
            ["diff-render", "/dev/null", "-", "--model", "/nowhere"],
            "the model folder /nowhere does not exist",
        ),
        (["render-file", "-"], "standard input holds no request"),
        (["diff-render", "/dev/null", "-"], "/dev/null holds no request"),
        (["render-file", "a/../x", "--output", "x"], "--output is x, the file that is read"),
        (["render-file", "-", "--output", "/dev"], "--output is /dev, which is not a file"),
        (["render-file", "-", "--output", "/dev/null"], "--output is /dev/null, which is not a file"),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"triptych: {message}\n")


V3 = {"chat_template": TEMPLATES["deepseek_v3"]}


def test_colours_asked_for_put_no_progress_where_there_is_no_terminal(conversations: Path) -> None:
    result = run("render-file", str(conversations), environment={"FORCE_COLOR": "1"})
    assert (result.returncode, result.stderr) == (0, "")


def test_what_does_not_fit_together_in_the_folder_is_a_warning(conversations: Path, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", config={"vocab_size": 1000}, tokenizer_config=V3)
    result = run("render-file", str(conversations), "--model", str(folder))
    assert result.returncode == 0
    assert result.stderr.startswith(
        f"triptych: warning: vocab_size is 1000 in {folder}/config.json, but the "
    )


def test_a_template_of_one_s_own_is_rendered_and_what_it_cannot_do_is_said_once(
    conversations: Path, tmp_path: Path
) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    result = run("render-file", str(conversations), "--chat-template", str(file), "--text")
    assert result.returncode == 0
    texts = [json.loads(line)["prompt_text"] for line in result.stdout.splitlines()]
    assert texts == ["<Hi>", "<My name is 你>"]
    assert result.stderr.splitlines() == [
        f"triptych: warning: the chat template leaves out {what}: requests with them are refused"
        for what in ("tool calls of earlier turns", "tool definitions")
    ]
    file.write_text("{% if %}")
    broken = run("render-file", str(conversations), "--chat-template", str(file))
    assert (broken.returncode, broken.stdout) == (2, "")
    assert broken.stderr.startswith(
        f"triptych: --chat-template is {file}: the chat template 'default', line 1: "
    )
    assert broken.stderr.count("\n") == 1


def test_a_difference_is_shown_and_exits_with_1(conversations: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for file, name in zip(files, ("你", "Ada"), strict=True):
        conversations.write_text(body("Hi") + body(f"My name is {name}"))
        assert run("render-file", str(conversations), "--output", str(file)).returncode == 0
    first, second = map(str, files)
    same = run("diff-render", first, first)
    assert (same.returncode, same.stdout, same.stderr) == (0, "", "")
    different = run("diff-render", first, second, "--model", str(MODEL))
    assert different.returncode == 1
    assert different.stdout.startswith("request 2 differs in its prompt from token ")
    assert "My name is" in different.stdout
    assert "Ada" in different.stdout
    broken = run("diff-render", first, str(conversations))
    assert broken.returncode == 2
    assert f"{conversations}, line 1: not a request that render-file wrote" in broken.stderr


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(body("word " * 200) * 500)
    command = (
        f"{shlex.quote(sys.executable)} -m services.cli render-file {shlex.quote(str(file))} | head -c 1"
    )
    result = subprocess.run(command, shell=True, capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert (result.stdout, result.stderr) == (b"{", b"")
