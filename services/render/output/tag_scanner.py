"""Finds an output's tags in its text, however the text is divided."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Item(NamedTuple):
    """A stretch of output: ordinary text, or one tag."""

    # As it reads if nobody takes it: empty for a tag whose token is left out of the text.
    text: str
    # The tag; empty for ordinary text.
    tag: str = ""


class TagScanner:
    """Cuts text into items, holding back only what may become a tag."""

    def __init__(self, tags: Iterable[str]) -> None:
        """No tag is the beginning of another, or reaches into another."""
        self._tags = tuple(tags)
        self._pattern = _any_of(self._tags)
        self._first_char = _any_of(sorted({tag[0] for tag in self._tags}))
        self._longest = max(map(len, self._tags), default=0)
        self._held = ""

    def push(self, text: str) -> list[Item]:
        """The items that are certain now."""
        if not self._held and not self._first_char.search(text):
            return [Item(text)] if text else []
        text = self._held + text
        items: list[Item] = []
        start = 0
        for match in self._pattern.finditer(text):
            items += [Item(text[start : match.start()]), Item(match[0], match[0])]
            start = match.end()
        end = self._start_of_tag(text, start)
        self._held = text[end:]
        items.append(Item(text[start:end]))
        return [item for item in items if item.text]

    def finish(self) -> list[Item]:
        """What is held back, when it can become no tag any more."""
        held, self._held = self._held, ""
        return [Item(held)] if held else []

    def _start_of_tag(self, text: str, start: int) -> int:
        """Where a tag begins that the text breaks off in; the text's end if there is none."""
        for match in self._first_char.finditer(text, max(start, len(text) - self._longest + 1)):
            rest = text[match.start() :]
            if any(tag.startswith(rest) for tag in self._tags):
                return match.start()
        return len(text)


def _any_of(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)")
