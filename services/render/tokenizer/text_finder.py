"""Finds the control tokens in a long text: a thousand texts, nearly none of them there."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from services.render.time_limit import check_clock

# Characters searched at a time: a few milliseconds at worst, in which no other thread runs.
_WINDOW = 128 * 1024
# How far a match may reach out of its window: no token is longer.
_MARGIN = 16 * 1024

# Start and end.
Span: TypeAlias = tuple[int, int]


class TextFinder:
    """Where any of some texts stands in another one: from left to right, the longest at each place."""

    def __init__(self, texts: Iterable[str]) -> None:
        by_first: dict[str, list[str]] = defaultdict(list)
        for text in texts:
            by_first[text[0]].append(text)
        # One pattern for each first character, of which tokenizers have one to three (`<`, `[`): `re` looks
        # for a single character ten times as fast as for one of several.
        self._patterns = [re.compile(_longest_of(group)) for group in by_first.values()]

    def spans(self, text: str) -> Iterator[Span]:
        """None overlaps another."""
        following = [(span, pattern) for pattern in self._patterns if (span := _first(pattern, text))]
        while len(following) > 1:
            first, _ = min(following, key=lambda each: each[0])
            yield first
            following = [
                (again, pattern)
                for span, pattern in following
                if (again := span if span[0] >= first[1] else _first(pattern, text, first[1]))
            ]
        for span, pattern in following:
            yield from _spans(pattern, text, span[0])

    def replace(self, text: str, new: Callable[[str], str]) -> str:
        """The text with what is found in it replaced."""
        parts: list[str] = []
        end = 0
        for start, stop in self.spans(text):
            parts += (text[end:start], new(text[start:stop]))
            end = stop
        return "".join([*parts, text[end:]])


def _spans(pattern: re.Pattern[str], text: str, position: int = 0) -> Iterator[Span]:
    """Where a pattern matches from a position on."""
    while position < len(text):
        check_clock()
        end = position + _WINDOW
        for match in pattern.finditer(text, position, end + _MARGIN):
            if match.start() >= end:
                break
            yield match.span()
            end = max(end, match.end())
        position = end


def _first(pattern: re.Pattern[str], text: str, position: int = 0) -> Span | None:
    return next(_spans(pattern, text, position), None)


def _longest_of(texts: Iterable[str]) -> str:
    """A pattern of any of these texts, the longest that fits, as a tree: a plain alternation of a thousand
    texts tries each of them at each place."""
    tree: dict[str, Any] = {}
    for text in texts:
        branch = tree
        for char in text:
            branch = branch.setdefault(char, {})
        branch[""] = {}
    return _branch_pattern(tree)


def _branch_pattern(tree: dict[str, Any]) -> str:
    branches = [re.escape(char) + _branch_pattern(branch) for char, branch in tree.items() if char]
    if not branches:
        return ""
    if len(branches) == 1 and "" not in tree:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'?' if '' in tree else ''}"
