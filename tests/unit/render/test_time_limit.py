"""Limits inside each other: the one that ends first counts, and each goes when its block is left."""

import time

import pytest

from services.render.time_limit import check_clock, time_limit


class FirstError(Exception):
    """One of two."""


class SecondError(Exception):
    """The other one."""


def test_without_a_limit_the_clock_never_stops_anything() -> None:
    check_clock()


@pytest.mark.parametrize("seconds", [(0.0, 60.0), (60.0, 0.0)])
def test_the_limit_that_ends_first_counts(seconds: tuple[float, float]) -> None:
    outer, inner = seconds
    expected = FirstError if outer < inner else SecondError
    with time_limit(outer, FirstError()), time_limit(inner, SecondError()):
        time.sleep(0.001)
        with pytest.raises(expected):
            check_clock()


def test_a_limit_ends_with_its_block() -> None:
    with time_limit(60, FirstError()):
        with time_limit(0, SecondError()):
            time.sleep(0.001)
        check_clock()
    check_clock()
