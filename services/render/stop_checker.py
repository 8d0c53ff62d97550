"""Stop strings over a stream of text.

The match that is complete first wins; of those complete at the same character, the longest. So the result
does not depend on how the stream is divided.
"""

from collections.abc import Sequence


class StopChecker:
    """Looks for the stop strings of one output, holding back only text that may become a match."""

    def __init__(
        self, stop: Sequence[str], *, include_stop_in_output: bool = False, min_tokens: int = 0
    ) -> None:
        """min_tokens: a match complete before this many tokens is ordinary text. No stop string is empty."""
        self._matchers = [_Matcher(text) for text in dict.fromkeys(stop)]
        self._include_stop_in_output = include_stop_in_output
        self._min_tokens = min_tokens
        self._held = ""
        # The stop string found; nothing is to be pushed after that.
        self.stop_string: str | None = None

    @property
    def num_held(self) -> int:
        """Characters held back."""
        return len(self._held)

    def push(self, text: str, num_tokens: int) -> str:
        """The text that may be sent now. num_tokens: of the output so far, with those that made this text."""
        if not self._matchers:
            return text
        before = self._held
        self._held += text
        for end, char in enumerate(text, start=len(before) + 1):
            found = self._advance(char)
            if found is not None and num_tokens >= self._min_tokens:
                self.stop_string = found
                return self._take(end if self._include_stop_in_output else end - len(found))
        num_held = max(matcher.num_matched for matcher in self._matchers)
        return self._take(len(self._held) - (0 if self._include_stop_in_output else num_held))

    def finish(self) -> str:
        """What is still held back, where the text ends; empty after a match. What is pushed later is another
        text, with matches of its own."""
        for matcher in self._matchers:
            matcher.num_matched = 0
        return "" if self.stop_string is not None else self._take(len(self._held))

    def _advance(self, char: str) -> str | None:
        """The longest stop string that this character completes."""
        found: str | None = None
        for matcher in self._matchers:
            if matcher.push(char) and (found is None or len(matcher.stop) > len(found)):
                found = matcher.stop
        return found

    def _take(self, num_chars: int) -> str:
        taken, self._held = self._held[:num_chars], self._held[num_chars:]
        return taken


class _Matcher:
    """Knuth, Morris and Pratt: how much of one stop string the text so far ends with."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        # Length of the longest proper prefix of `stop` that the text ends with.
        self.num_matched = 0
        # shorter[k]: the longest proper prefix of stop[:k] that is also its suffix.
        self._shorter = [0, 0]
        for char in stop[1:]:
            self._shorter.append(self._next(self._shorter[-1], char))

    def push(self, char: str) -> bool:
        """True if this character completes the stop string."""
        num_matched = self._next(self.num_matched, char)
        is_complete = num_matched == len(self.stop)
        self.num_matched = self._shorter[num_matched] if is_complete else num_matched
        return is_complete

    def _next(self, num_matched: int, char: str) -> int:
        while num_matched and self.stop[num_matched] != char:
            num_matched = self._shorter[num_matched]
        return num_matched + (self.stop[num_matched] == char)
