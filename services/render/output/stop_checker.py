"""Stop strings over a stream of text.

The match that is complete first wins; of those complete at the same character, the longest. So the result
does not depend on how the stream is divided.
"""

from services.render.output.stop_strings import StopStrings


class StopChecker:
    """Looks for the stop strings of one output, holding back only text that may become a match."""

    def __init__(
        self, stop_strings: StopStrings, *, include_stop_in_output: bool = False, min_tokens: int = 0
    ) -> None:
        """min_tokens: a match complete before this many tokens is ordinary text."""
        self._stop_strings = stop_strings
        self._state = 0
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
        if self._state == 0 and not self._stop_strings.begin_in(text):
            return text
        start = len(self._held) + 1
        self._held += text
        for end, char in enumerate(text, start):
            self._state = self._stop_strings.advance(self._state, char)
            found = self._stop_strings.found[self._state]
            if found and num_tokens >= self._min_tokens:
                self.stop_string = found
                return self._take(end if self._include_stop_in_output else end - len(found))
        num_held = 0 if self._include_stop_in_output else self._stop_strings.num_open[self._state]
        return self._take(len(self._held) - num_held)

    def finish(self) -> str:
        """What is still held back, where the text ends; empty after a match. What is pushed later is another
        text, with matches of its own."""
        self._state = 0
        return "" if self.stop_string is not None else self._take(len(self._held))

    def _take(self, num_chars: int) -> str:
        taken, self._held = self._held[:num_chars], self._held[num_chars:]
        return taken
