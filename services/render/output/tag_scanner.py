"""Finds an output's tags in its text, however the text is divided."""

import re
from collections.abc import Iterable, Sequence

from services.render.output.segments import Segment, SegmentBuffer


class TagScanner:
    """Cuts text at the tags in it; buffers only what may become a tag."""

    def __init__(self, tags: Iterable[str]) -> None:
        """No tag is the beginning of another, or reaches into another."""
        self._tags = tuple(tags)
        self._pattern = _any_of(self._tags)
        self._first_char = _any_of(sorted({tag[0] for tag in self._tags}))
        self._longest = max(map(len, self._tags), default=0)
        self._buffer = SegmentBuffer()

    @property
    def oldest(self) -> int | None:
        return self._buffer.oldest

    def feed(self, segment: Segment) -> list[Segment]:
        """Text and tags. A segment that is a tag already passes: no other reaches across it."""
        if segment.tag:
            return [*self.flush(), segment]
        if not self._buffer.num_chars and not self._first_char.search(segment.text):
            return [segment]
        self._buffer.append(segment)
        text = self._buffer.text
        segments: list[Segment] = []
        start = 0
        for match in self._pattern.finditer(text):
            segments += self._buffer.take(match.start() - start)
            parts = tuple(self._buffer.take(len(match[0])))
            segments.append(Segment(match[0], parts[-1].number, tag=match[0], parts=parts))
            start = match.end()
        return segments + self._buffer.take(self._start_of_tag(text, start) - start)

    def flush(self) -> list[Segment]:
        return self._buffer.take_all()

    def _start_of_tag(self, text: str, start: int) -> int:
        """Where a tag begins that the text breaks off in; the text's end if there is none."""
        for match in self._first_char.finditer(text, max(start, len(text) - self._longest + 1)):
            rest = text[match.start() :]
            if any(tag.startswith(rest) for tag in self._tags):
                return match.start()
        return len(text)


def _any_of(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)")
