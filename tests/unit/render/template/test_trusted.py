"""A trusted string does what any string does, and trusts no character of content."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.render.template.trusted import Trusted, joined, mask_of, modulo, trusted
from services.render.tokenizer.control_tokens import TRUSTED, UNTRUSTED

PIECES = st.lists(st.sampled_from(["<a>", "[B]", "a", "B", " ", "\n", "<", "ä", "x"]), max_size=8)
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "a + b": lambda a, b: a + b,
    "b + a": lambda a, b: b + a,
    "a * 2": lambda a, _: a * 2,
    "a[1:-1]": lambda a, _: a[1:-1],
    "a[::-2]": lambda a, _: a[::-2],
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
    "a % b": lambda a, b: modulo(a + "%s, %5s%%" + a, (a, b)),
    "'%s' % a": lambda a, _: modulo("100%% %s|", a),
    "'%(x)s' % a": lambda a, _: modulo("%(x)s-%(y)d", {"x": a, "y": 5}),
    "~": lambda a, b: joined([a, b, "x", a]),
}


def plain(value: Any) -> Any:
    return str.__str__(value) if isinstance(value, str) else type(value)(map(plain, value))


def characters(value: Any, mask: str) -> str:
    """Those of a string, or of several, with this mask."""
    parts = [value] if isinstance(value, str) else value
    return "".join(
        char for part in parts for char, each in zip(part, mask_of(part), strict=True) if each == mask
    )


@pytest.mark.parametrize("operation", OPERATIONS)
@given(first=PIECES, second=PIECES, second_is_trusted=st.booleans())
def test_it_gives_what_any_string_gives(
    operation: str, first: list[str], second: list[str], second_is_trusted: bool
) -> None:
    a, b = "".join(first), "".join(second)
    result = OPERATIONS[operation](trusted(a), trusted(b) if second_is_trusted else b)
    assert plain(result) == OPERATIONS[operation](a, b)


# Characters that no string of the template's has, and none of its others.
CONTENT = st.text("012 \n", max_size=8)


@pytest.mark.parametrize("operation", OPERATIONS)
@given(first=st.lists(st.tuples(PIECES.map("".join), CONTENT), max_size=3), second=CONTENT)
def test_of_what_is_mixed_each_character_keeps_its_trust(
    operation: str, first: list[tuple[str, str]], second: str
) -> None:
    mixed = joined([each for own, content in first for each in (trusted(own), content)])
    result = OPERATIONS[operation](mixed, second)
    assert plain(result) == OPERATIONS[operation](plain(mixed), second)
    assert not set(characters(result, TRUSTED)) & set("012")
    if operation != "replace nothing":
        assert not set(characters(result, UNTRUSTED)) & set("<>[]aAbBäÄ")


@pytest.mark.parametrize("operation", OPERATIONS)
@given(first=PIECES, second=PIECES)
def test_nothing_made_of_content_alone_is_trusted(
    operation: str, first: list[str], second: list[str]
) -> None:
    a, b = "".join(first), "".join(second)
    result = OPERATIONS[operation](Trusted(a), b)
    assert plain(result) == OPERATIONS[operation](a, b)
    assert characters(result, TRUSTED) == ""
