"""Each command's help lists every flag, whole in a narrow window, and says how a variable stands for it."""

import re
from importlib.metadata import version

import pytest

from services.cli.chat import ChatConfig
from services.cli.up import LEFT_OUT, UpConfig
from services.render.config import RenderConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from tests.support.processes import run

CLASSES = {
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


def test_without_a_command_the_commands_are_listed() -> None:
    result = run()
    assert result.returncode == 0
    assert all(command in result.stdout for command in CLASSES)


def test_the_version_is_that_of_the_package() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"triptych {version('triptych')}\n")
