"""A template's own text does what any text does, and stays its own."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.render.template.trusted import OwnText, read_marked
from services.render.tokenizer.control_tokens import AddedToken, ControlTokens

TOKENS = ControlTokens([AddedToken(1, "<a>", True, False, False), AddedToken(2, "[B]", True, False, False)])
PIECES = st.lists(st.sampled_from(["<a>", "[B]", "a", "B", " ", "\n", "<", "ä", "x"]), max_size=8)
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "a + b": lambda a, b: a + b,
    "b + a": lambda a, b: b + a,
    "a * 2": lambda a, _: a * 2,
    "a[1:-1]": lambda a, _: a[1:-1],
    "a[::-2]": lambda a, _: a[::-2],
    "list(a)": lambda a, _: list(a),
    "strip": lambda a, b: a.strip(b or None),
    "lstrip": lambda a, _: a.lstrip(),
    "rstrip": lambda a, _: a.rstrip(),
    "removeprefix": lambda a, b: a.removeprefix(b[:2]),
    "removesuffix": lambda a, b: a.removesuffix(b[-2:]),
    "partition": lambda a, b: a.partition(b or "x"),
    "rpartition": lambda a, b: a.rpartition(b or "x"),
    "split()": lambda a, _: a.split(),
    "split(None, 1)": lambda a, _: a.split(None, 1),
    "split(b)": lambda a, b: a.split(b[:2] or "x"),
    "split(b, 1)": lambda a, b: a.split(b[:1] or "x", 1),
    "rsplit()": lambda a, _: a.rsplit(None, 1),
    "rsplit(b, 1)": lambda a, b: a.rsplit(b[:1] or "x", 1),
    "splitlines": lambda a, _: a.splitlines(),
    "splitlines(True)": lambda a, _: a.splitlines(True),
    "replace": lambda a, b: a.replace(b[:1] or "x", b),
    "replace once": lambda a, b: a.replace(b[:2] or "x", "y", 1),
    "replace nothing": lambda a, _: a.replace("", "-"),
    "join": lambda a, b: a.join([b, "x", b]),
    "lower": lambda a, _: a.lower(),
    "upper": lambda a, _: a.upper(),
    "title": lambda a, _: a.title(),
    "capitalize": lambda a, _: a.capitalize(),
    "casefold": lambda a, _: a.casefold(),
    "center": lambda a, _: a.center(12, "."),
    "ljust": lambda a, _: a.ljust(12),
    "rjust": lambda a, _: a.rjust(12),
}


def own(text: str) -> OwnText:
    return OwnText(text, TOKENS.mark_tokens(text), TOKENS)


def plain(value: Any) -> Any:
    """As templates compare it."""
    return str.__str__(value) if isinstance(value, str) else type(value)(map(plain, value))


def printed(value: Any) -> Any:
    return str(value) if isinstance(value, str) else type(value)(map(printed, value))


def unmarked(value: Any) -> Any:
    return TOKENS.unmark(value) if isinstance(value, str) else type(value)(map(unmarked, value))


@pytest.mark.parametrize("operation", OPERATIONS)
@given(first=PIECES, second=PIECES, second_is_own=st.booleans())
def test_it_reads_as_any_text_and_is_printed_in_the_same_letters(
    operation: str, first: list[str], second: list[str], second_is_own: bool
) -> None:
    a, b = "".join(first), "".join(second)
    expected = OPERATIONS[operation](a, b)
    result = OPERATIONS[operation](own(a), own(b) if second_is_own else b)
    assert plain(result) == expected
    assert unmarked(printed(result)) == expected


@pytest.mark.parametrize("operation", OPERATIONS)
@given(first=PIECES, second=PIECES)
def test_another_s_text_is_never_in_disguise(operation: str, first: list[str], second: list[str]) -> None:
    a, b = "".join(first), "".join(second)
    result = OPERATIONS[operation](OwnText(a, a, TOKENS), b)
    assert printed(result) == OPERATIONS[operation](a, b)


@given(PIECES)
def test_what_was_printed_reads_as_itself_again(pieces: list[str]) -> None:
    text = own("".join(pieces))
    again = read_marked(str(text), TOKENS)
    assert (plain(again), str(again)) == (plain(text), str(text))


def test_a_change_of_case_marks_only_what_was_marked() -> None:
    assert str(OwnText("<a>[b]", TOKENS.mark("<a>") + "[b]", TOKENS).upper()) == TOKENS.mark("<") + "A" + (
        TOKENS.mark(">") + "[B]"
    )
