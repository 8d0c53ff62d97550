"""Divides one output into reasoning, text and tool calls.

A tag that the format does not expect where it stands is text. So is an abandoned call, one that is cut short
or malformed: all that was read of it is sent as literal text, in the order in which it came.
"""

from enum import Enum, auto

from services.render.output.call_reader import CallReader, MalformedCallError
from services.render.output.formats import OutputFormat
from services.render.output.markup_calls import ValueTypes
from services.render.output.segments import CallPiece, Channel, Segment, SegmentBuffer


class _State(Enum):
    # Reasoning or text.
    OUTSIDE = auto()
    # Before and between the calls of a section. A call may lack a section; it is one of its own.
    SECTION = auto()
    CALL = auto()
    # After a section's last tag.
    AFTER_SECTION = auto()


class OutputParser:
    """One output's state."""

    def __init__(
        self,
        output_format: OutputFormat,
        *,
        starts_in_reasoning: bool,
        call_id_prefix: str,
        value_types: ValueTypes,
    ) -> None:
        """call_id_prefix: of the ids that are made where the format has none."""
        self._format = output_format
        self._value_types = value_types
        self._call_id_prefix = call_id_prefix
        self._state = _State.OUTSIDE
        self._channel = Channel.REASONING if starts_in_reasoning else Channel.TEXT
        # Something other than white space was written, after which reasoning cannot begin.
        self._has_begun = False
        # The section has a complete call.
        self._has_call = False
        # Calls begun, abandoned ones included.
        self._num_calls = 0
        self._call: CallReader = output_format.open_call(value_types)
        # The call's id and name were sent.
        self._is_announced = False
        # What was read as parts of a section or call, and is literal text if it is none.
        self._buffer = SegmentBuffer()
        self._written: list[Segment] = []

    @property
    def oldest(self) -> int | None:
        return None if self._is_announced else self._buffer.oldest

    def feed(self, segment: Segment) -> list[Segment]:
        """Text and taken tags, each with its channel, and pieces of calls."""
        rest: Segment | None = segment
        while rest is not None:
            if self._state is _State.OUTSIDE:
                rest = self._feed_outside(rest)
            elif self._state is _State.CALL:
                rest = self._feed_call(rest)
            else:
                rest = self._feed_section(rest)
        return self._take_written()

    def flush(self) -> list[Segment]:
        """A section may lack its end; a call may not."""
        self._close_section()
        return self._take_written()

    def _feed_outside(self, segment: Segment) -> Segment | None:
        """As all _feed_…: returns what the next state is to read."""
        tag, had_begun = segment.tag, self._has_begun
        self._has_begun = had_begun or bool(tag or segment.text.strip())
        if tag in (self._format.section_begin, self._format.call_begin):
            self._state, self._has_call = _State.SECTION, False
            if tag == self._format.call_begin:
                return segment
            self._buffer_segment(segment)
        # A prompt that leaves reasoning open does not keep every model from opening it again.
        elif tag == self._format.reasoning_begin and not had_begun:
            self._channel = Channel.REASONING
            self._take_tag(segment)
        elif tag == self._format.reasoning_end and self._channel is Channel.REASONING:
            self._take_tag(segment)
            self._channel = Channel.TEXT
        else:
            self._write(segment)
        return None

    def _feed_section(self, segment: Segment) -> Segment | None:
        """White space belongs to the section, also after its end; anything else ends it."""
        if self._state is _State.SECTION:
            if segment.tag == self._format.call_begin:
                self._buffer_segment(segment)
                self._state, self._call = _State.CALL, self._format.open_call(self._value_types)
                self._num_calls += 1
                return None
            if segment.tag == self._format.section_end:
                self._buffer_segment(segment)
                self._close_section()
                self._state = _State.AFTER_SECTION if self._has_call else _State.OUTSIDE
                return None
        text = segment.text if segment.tag else segment.text.lstrip()
        if num_spaces := len(segment.text) - len(text):
            self._buffer_segment(segment._replace(text=segment.text[:num_spaces]))
        if not text and not segment.tag:
            return None
        self._close_section()
        return segment._replace(text=text)

    def _feed_call(self, segment: Segment) -> Segment | None:
        is_end = segment.tag == self._format.call_end
        is_text = segment.tag in (self._format.reasoning_begin, self._format.reasoning_end)
        try:
            if is_end:
                arguments = self._call.close()
            else:
                arguments = self._call.feed(segment.text, "" if is_text else segment.tag)
        except MalformedCallError:
            if is_end:
                self._buffer_segment(segment)
            self._write_literal()
            self._is_announced = False
            self._state = _State.SECTION if segment.tag else _State.OUTSIDE
            return None if is_end else segment
        self._buffer_segment(segment)
        if self._call.name:
            self._write_call(arguments, segment.number, is_last=is_end)
        return None

    def _write_call(self, arguments: str, number: int, *, is_last: bool) -> None:
        index = self._num_calls - 1
        call_id = name = ""
        if not self._is_announced:
            call_id, name = self._call.call_id or f"{self._call_id_prefix}-{index}", self._call.name
        self._is_announced = not is_last
        self._written.append(Segment(arguments, number, call=CallPiece(index, call_id, name, is_last)))
        if is_last:
            self._buffer.clear()
            self._state, self._has_call = _State.SECTION, True
            # Whoever calls a tool has thought enough: Kimi K2 sometimes leaves out the end of its reasoning.
            self._channel = Channel.TEXT

    def _close_section(self) -> None:
        if self._has_call and self._state is not _State.CALL:
            self._buffer.clear()
        self._write_literal()
        self._state = _State.OUTSIDE

    def _take_tag(self, segment: Segment) -> None:
        self._written.append(Segment("", segment.number, tag=segment.tag, channel=self._channel))

    def _write(self, segment: Segment) -> None:
        for part in segment.parts if segment.tag else (segment,):
            self._written.append(Segment(part.text, part.number, channel=self._channel))

    def _buffer_segment(self, segment: Segment) -> None:
        for part in segment.parts if segment.tag else (segment,):
            self._buffer.append(part)

    def _write_literal(self) -> None:
        for segment in self._buffer.take_all():
            literal = Segment(segment.text, segment.number, channel=self._channel, is_literal=True)
            self._written.append(literal)

    def _take_written(self) -> list[Segment]:
        written, self._written = self._written, []
        return written
