"""Bounds on how long work may take that looks at the clock now and then, such as a template's loops."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic


class AbandonedError(Exception):
    """Nobody waits for the work's result any more."""


class _Limit(threading.local):
    deadline = float("inf")
    error = Exception()
    abandoned: threading.Event | None = None


_limit = _Limit()


@contextmanager
def time_limit(seconds: float, error: Exception) -> Iterator[None]:
    """Inside, in this thread, `check_clock` raises the error once the time is over. Of limits inside each
    other the one counts that ends first."""
    outer = _limit.deadline, _limit.error
    deadline = monotonic() + seconds
    if deadline < _limit.deadline:
        _limit.deadline, _limit.error = deadline, error
    try:
        yield
    finally:
        _limit.deadline, _limit.error = outer


@contextmanager
def until_abandoned(abandoned: threading.Event) -> Iterator[None]:
    """Inside, in this thread, `check_clock` raises AbandonedError once the event is set."""
    _limit.abandoned = abandoned
    try:
        yield
    finally:
        _limit.abandoned = None


def check_clock() -> None:
    """Called from inside every loop, and between the parts of a long text."""
    if monotonic() > _limit.deadline:
        raise _limit.error
    if _limit.abandoned is not None and _limit.abandoned.is_set():
        raise AbandonedError
