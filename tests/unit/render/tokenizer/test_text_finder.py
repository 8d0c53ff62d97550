"""The finder against looking at each place for each text."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.render.time_limit import time_limit
from services.render.tokenizer import text_finder
from services.render.tokenizer.text_finder import Span, TextFinder

# Three characters: the texts begin alike, contain one another and overlap where they stand.
ALPHABET = "<|a"


def expected_spans(texts: Sequence[str], text: str) -> Iterator[Span]:
    position = 0
    while position < len(text):
        found = [each for each in texts if text.startswith(each, position)]
        if found:
            longest = max(map(len, found))
            yield position, position + longest
            position += longest
        else:
            position += 1


@given(st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=6), st.text(ALPHABET, max_size=60))
def test_texts_are_found_from_left_to_right_the_longest_at_each_place(texts: list[str], text: str) -> None:
    finder = TextFinder(texts)
    expected = list(expected_spans(texts, text))
    assert list(finder.spans(text)) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_finder, "_WINDOW", 3)
        assert list(finder.spans(text)) == expected


def test_a_search_ends_when_its_time_is_over() -> None:
    with time_limit(-1, TimeoutError()), pytest.raises(TimeoutError):
        list(TextFinder(["<a>"]).spans("x" * 10))


def test_what_is_found_is_replaced() -> None:
    assert TextFinder(["<a>", "<"]).replace("x<a>y<z", str.upper) == "x<A>y<z"
    assert TextFinder([]).replace("x<a>", str.upper) == "x<a>"
