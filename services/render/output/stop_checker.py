"""Stop strings over a stream of text.

The match that is complete first wins; of those complete at the same character, the longest. So the result
does not depend on how the stream is divided.
"""

from services.render.output.segments import Channel, Segment, SegmentBuffer
from services.render.output.stop_strings import StopStrings


class StopChecker:
    """Looks for the stop strings of one output; buffers only text that may become a match.

    A match reaches neither from one channel into the other, nor over a tag or a call.
    """

    def __init__(
        self,
        stop_strings: StopStrings,
        *,
        include_stop_in_output: bool = False,
        stop_in_reasoning: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """min_tokens: a match complete before this many tokens is ordinary text."""
        self._stop_strings = stop_strings
        self._include_stop_in_output = include_stop_in_output
        self._stop_in_reasoning = stop_in_reasoning
        self._min_tokens = min_tokens
        self._state = 0
        self._channel = Channel.TEXT
        self._buffer = SegmentBuffer()
        # The stop string found; nothing that comes later is passed on.
        self.stop_string: str | None = None
        # Of the token that completes it.
        self.stop_number = 0

    @property
    def oldest(self) -> int | None:
        return self._buffer.oldest

    def feed(self, segment: Segment) -> list[Segment]:
        """What may be sent now; after a match nothing."""
        if self.stop_string is not None:
            return []
        if segment.channel is Channel.REASONING and not self._stop_in_reasoning:
            return [*self.flush(), segment]
        if segment.call or segment.tag or segment.is_literal:
            return [*self.flush(), segment]
        before = self.flush() if segment.channel is not self._channel else []
        self._channel = segment.channel
        if self._state == 0 and not self._stop_strings.begin_in(segment.text):
            return [*before, segment]
        return [*before, *self._check(segment)]

    def flush(self) -> list[Segment]:
        """What comes later is another text, with matches of its own."""
        self._state = 0
        return self._buffer.take_all()

    def _check(self, segment: Segment) -> list[Segment]:
        start = self._buffer.num_chars + 1
        self._buffer.append(segment)
        for end, char in enumerate(segment.text, start):
            self._state = self._stop_strings.advance(self._state, char)
            found = self._stop_strings.found[self._state]
            if found and segment.number >= self._min_tokens:
                self.stop_string, self.stop_number = found, segment.number
                kept = self._buffer.take(end if self._include_stop_in_output else end - len(found))
                self._buffer.clear()
                # Also the match is output of this channel.
                return [*kept, segment._replace(text="")]
        num_open = 0 if self._include_stop_in_output else self._stop_strings.num_open[self._state]
        return self._buffer.take(self._buffer.num_chars - num_open)
