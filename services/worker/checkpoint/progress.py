"""Shows how far loading is: a progress bar on a terminal, log lines otherwise."""

import sys
from time import perf_counter
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from shared.log import get_logger

# Between two log lines.
LINE_SECONDS = 5.0

_log = get_logger()


class LoadProgress:
    """Called with (tensors read, tensors in all) after each tensor, inside a `with`."""

    def __init__(self, console: Console | None = None) -> None:
        """console: by default stderr, with a bar only if that is a terminal, whatever FORCE_COLOR says."""
        console = console or Console(file=sys.stderr, force_terminal=sys.stderr.isatty())
        columns = (TextColumn("loading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._task = self._bar.add_task("loading", total=None) if self._bar else None
        self._last_line = perf_counter()

    def __enter__(self) -> "LoadProgress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, num_read: int, num_tensors: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=num_read, total=num_tensors)
        elif perf_counter() - self._last_line >= LINE_SECONDS:
            self._last_line = perf_counter()
            _log.info("loading", tensors=num_read, of=num_tensors)
