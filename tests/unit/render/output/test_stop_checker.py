"""Stop strings, against an oracle that sees the whole text."""

from hypothesis import given, settings
from hypothesis import strategies as st

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


def run(checker: StopChecker, pieces: list[str]) -> str:
    """All text that the checker lets through."""
    kept = ""
    for count, piece in enumerate(pieces, start=1):
        kept += checker.push(piece, count)
        if checker.stop_string is not None:
            return kept
    return kept + checker.finish()


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
def test_nothing_is_held_back_that_cannot_become_a_match(text: str, stop: list[str]) -> None:
    checker = StopChecker(StopStrings(stop))
    sent = checker.push(text, 1)
    if checker.stop_string is None:
        held = text[len(sent) :]
        assert text == sent + held
        prefixes = {each[:length] for each in stop for length in range(1, len(each))}
        longest = max(
            (length for length in range(len(text) + 1) if text[len(text) - length :] in prefixes), default=0
        )
        assert len(held) == longest


def test_with_the_stop_string_in_the_output_nothing_is_held_back() -> None:
    checker = StopChecker(StopStrings(["STOP"]), include_stop_in_output=True)
    assert checker.push("a ST", 1) == "a ST"
    assert checker.push("OP more", 2) == "OP"
    assert checker.stop_string == "STOP"


def test_a_match_complete_before_min_tokens_is_ordinary_text() -> None:
    checker = StopChecker(StopStrings(["STOP"]), min_tokens=3)
    assert checker.push("STOP ", 1) == "STOP "
    assert checker.push("a STO", 2) == "a "
    assert checker.push("P b", 3) == ""
    assert checker.stop_string == "STOP"


def test_a_match_that_overlaps_an_ignored_one_counts() -> None:
    checker = StopChecker(StopStrings(["abab"]), min_tokens=2)
    assert checker.push("abab", 1) == "ab"
    assert checker.push("ab", 2) == ""
    assert checker.stop_string == "abab"


def test_without_stop_strings_text_passes_through() -> None:
    checker = StopChecker(StopStrings([]))
    assert checker.push("anything", 1) == "anything"
    assert checker.finish() == ""
