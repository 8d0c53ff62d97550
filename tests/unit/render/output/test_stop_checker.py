"""Stop strings, against an oracle that sees the whole text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.render.output.segments import Segment
from services.render.output.stop_checker import StopChecker
from services.render.output.stop_strings import StopStrings

FEW_LETTERS = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)


def one_shot(text: str, stop: list[str], include: bool = False) -> tuple[str, str | None]:
    """The kept text and the stop string: the match that is complete first, and of those the longest."""
    for end in range(1, len(text) + 1):
        if found := [each for each in stop if text[:end].endswith(each)]:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


def feed(checker: StopChecker, text: str, number: int) -> str:
    """The text that the checker lets through."""
    return "".join(segment.text for segment in checker.feed(Segment(text, number)))


def flush(checker: StopChecker) -> str:
    return "".join(segment.text for segment in checker.flush())


def run(checker: StopChecker, pieces: list[str]) -> str:
    """All text that the checker lets through."""
    kept = "".join(feed(checker, piece, count) for count, piece in enumerate(pieces, start=1))
    return kept + flush(checker)


@settings(deadline=None)
@given(st.lists(st.text("ab", max_size=4), max_size=12), STOPS, st.booleans())
def test_any_division_gives_the_result_of_the_whole_text(
    pieces: list[str], stop: list[str], include: bool
) -> None:
    checker = StopChecker(StopStrings(stop), include_stop_in_output=include)
    kept = run(checker, pieces)
    assert (kept, checker.stop_string) == one_shot("".join(pieces), stop, include)


@settings(deadline=None)
@given(FEW_LETTERS, STOPS)
def test_nothing_is_buffered_that_cannot_become_a_match(text: str, stop: list[str]) -> None:
    checker = StopChecker(StopStrings(stop))
    sent = feed(checker, text, 1)
    if checker.stop_string is None:
        buffered = text[len(sent) :]
        assert text == sent + buffered
        prefixes = {each[:length] for each in stop for length in range(1, len(each))}
        longest = max(
            (length for length in range(len(text) + 1) if text[len(text) - length :] in prefixes), default=0
        )
        assert len(buffered) == longest


def test_with_the_stop_string_in_the_output_nothing_is_buffered() -> None:
    checker = StopChecker(StopStrings(["STOP"]), include_stop_in_output=True)
    assert feed(checker, "a ST", 1) == "a ST"
    assert feed(checker, "OP more", 2) == "OP"
    assert checker.stop_string == "STOP"


def test_a_match_complete_before_min_tokens_is_ordinary_text() -> None:
    checker = StopChecker(StopStrings(["STOP"]), min_tokens=3)
    assert feed(checker, "STOP ", 1) == "STOP "
    assert feed(checker, "a STO", 2) == "a "
    assert feed(checker, "P b", 3) == ""
    assert checker.stop_string == "STOP"


def test_a_match_that_overlaps_an_ignored_one_counts() -> None:
    checker = StopChecker(StopStrings(["abab"]), min_tokens=2)
    assert feed(checker, "abab", 1) == "ab"
    assert feed(checker, "ab", 2) == ""
    assert checker.stop_string == "abab"


def test_without_stop_strings_text_passes_through() -> None:
    checker = StopChecker(StopStrings([]))
    assert feed(checker, "anything", 1) == "anything"
    assert flush(checker) == ""
