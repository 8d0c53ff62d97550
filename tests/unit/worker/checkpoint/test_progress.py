"""A bar on a terminal; elsewhere a line now and then, none for a load that takes a moment."""

import io

import pytest
from rich.console import Console

from services.worker.checkpoint import progress as progress_module
from services.worker.checkpoint.progress import load_progress


def show(
    monkeypatch: pytest.MonkeyPatch, seconds_each: float, *, is_terminal: bool
) -> tuple[str, list[dict]]:
    """What 10 tensors show on the console, and what they log."""
    lines: list[dict] = []
    monkeypatch.setattr(progress_module._log, "info", lambda event, **values: lines.append(values))
    clock = iter(i * seconds_each for i in range(100))
    monkeypatch.setattr(progress_module, "perf_counter", lambda: next(clock))
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=80)
    with load_progress(console) as progress:
        for i in range(10):
            progress(i + 1, 10)
    return console.file.getvalue(), lines  # type: ignore[attr-defined]


def test_a_terminal_gets_a_bar_and_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, lines = show(monkeypatch, 60.0, is_terminal=True)
    assert "loading" in shown
    assert "10/10" in shown
    assert not lines


def test_a_long_load_is_told_in_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, lines = show(monkeypatch, 3.0, is_terminal=False)
    assert not shown
    assert lines[0] == {"tensors": 2, "of": 10}
    assert 3 <= len(lines) <= 5


def test_a_short_load_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert show(monkeypatch, 0.01, is_terminal=False) == ("", [])
