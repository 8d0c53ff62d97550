"""Shows how far loading is: a progress bar on a terminal, log lines otherwise."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from shared.log import get_logger

# Between two log lines.
LINE_SECONDS = 5.0

_log = get_logger()


@contextmanager
def load_progress(console: Console | None = None) -> Iterator[Callable[[int, int], None]]:
    """Yields a function to call with (tensors read, tensors in all) after each tensor.

    console: by default stderr, with a bar only if that is a terminal, whatever FORCE_COLOR says.
    """
    console = console or Console(file=sys.stderr, force_terminal=sys.stderr.isatty())
    if not console.is_terminal:
        yield _log_lines()
        return
    columns = (TextColumn("loading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda num_read, num_tensors: bar.update(task, completed=num_read, total=num_tensors)


def _log_lines() -> Callable[[int, int], None]:
    last_line = perf_counter()

    def show(num_read: int, num_tensors: int) -> None:
        nonlocal last_line
        if perf_counter() - last_line >= LINE_SECONDS:
            last_line = perf_counter()
            _log.info("loading", tensors=num_read, of=num_tensors)

    return show
