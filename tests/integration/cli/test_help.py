"""Each command's help lists every flag, whole in a narrow window, and says how a variable stands for it."""

import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from pydantic import BaseModel

from services.cli.chat import ChatConfig
from services.cli.up import LEFT_OUT, UpConfig
from services.render.config import RenderConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from tests.support.processes import run

CLASSES: dict[str, list[type[BaseModel]]] = {
    "render": [RenderConfig],
    "scheduler": [SchedulerConfig],
    "worker": [WorkerConfig],
    "up": [UpConfig, RenderConfig, SchedulerConfig, WorkerConfig],
    "chat": [ChatConfig],
}


@pytest.mark.parametrize("command", CLASSES)
def test_help_lists_every_flag_in_a_window_of_80_columns(command: str) -> None:
    result = run(command, "--help", environment={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert result.returncode == 0
    assert "…" not in result.stdout
    assert "triptych_some_flag" in result.stdout
    fields = {name for each in CLASSES[command] for name in each.model_fields}
    left_out = LEFT_OUT if command == "up" else frozenset()
    words = set(re.findall(r"[\w-]+", result.stdout))
    for name in fields - left_out:
        assert "--" + name.replace("_", "-") in words, name
    assert not {"--" + name.replace("_", "-") for name in left_out} & words


def test_the_help_of_up_is_grouped_by_the_services_that_take_a_flag() -> None:
    text = run("up", "--help", environment={"COLUMNS": "100"}).stdout
    panels = dict(re.findall(r"╭─ ([\w ]+) ─+╮\n(.*?)╰", text, re.DOTALL))
    flags = {title: set(re.findall(r"^│ (--[\w-]+)", lines, re.M)) for title, lines in panels.items()}
    assert {"--workers", "--base-port", "--verbose", "--log-dir"} <= flags["Options"]
    assert "--parser" in flags["Render"]
    assert "--max-num-seqs" in flags["Scheduler"]
    assert "--device" in flags["Worker"]
    assert "--model" in flags["Render and worker"]
    assert {"--drain-seconds", "--tls-ca"} <= flags["All services"]
    assert list(flags)[-1] == "All services"


@pytest.mark.parametrize("arguments", [["--help"], ["worker", "--help"], ["up", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    script = f"""
import sys
from services.cli.main import main
sys.argv = ["triptych", *{arguments}]
try:
    main()
except SystemExit:
    print("heavy:", *({{"torch", "numpy", "tokenizers", "jinja2", "transformers"}} & sys.modules.keys()))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "heavy:"


def test_without_a_command_the_commands_are_listed() -> None:
    result = run()
    assert result.returncode == 0
    assert all(command in result.stdout for command in CLASSES)


def test_the_version_is_that_of_the_package() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"triptych {version('triptych')}\n")
