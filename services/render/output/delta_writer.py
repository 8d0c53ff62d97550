"""Segments become a TextDelta. Also collects the output's complete calls, and counts tokens of reasoning."""

from triptych.v1 import render_pb2

from services.render.output.segments import CallPiece, Channel, Segment


class DeltaWriter:
    """What the next TextDelta of one output says, its tokens apart."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._call_deltas: list[render_pb2.ToolCallDelta] = []
        # The call being written, and the pieces of its arguments.
        self._call = render_pb2.ToolCall()
        self._arguments: list[str] = []
        # The complete ones of the whole output.
        self.tool_calls: list[render_pb2.ToolCall] = []
        # Tokens of reasoning; which are, is known up to the last token counted.
        self.num_reasoning_tokens = 0
        self._last_counted = 0
        self._is_last_reasoning = False

    def __bool__(self) -> bool:
        return bool(self._text or self._reasoning or self._call_deltas)

    def write(self, segment: Segment) -> None:
        if segment.call is not None:
            self._write_call(segment.call, segment.text)
            if not segment.call.is_last:
                return  # an abandoned call is sent again, as text
        self._count_token(segment.number, is_reasoning=segment.channel is Channel.REASONING)
        if segment.text and segment.call is None:
            (self._text if segment.channel is Channel.TEXT else self._reasoning).append(segment.text)

    def take(self) -> render_pb2.TextDelta:
        delta = render_pb2.TextDelta(
            text="".join(self._text),
            reasoning_content="".join(self._reasoning),
            tool_calls=self._call_deltas,
        )
        self._text, self._reasoning, self._call_deltas = [], [], []
        return delta

    def _count_token(self, number: int, *, is_reasoning: bool) -> None:
        """Tokens without text count as the next one does, one with both reasoning and text as reasoning."""
        if number == self._last_counted:
            self.num_reasoning_tokens += is_reasoning and not self._is_last_reasoning
            self._is_last_reasoning = is_reasoning or self._is_last_reasoning
        else:
            self.num_reasoning_tokens += (number - self._last_counted) * is_reasoning
            self._last_counted, self._is_last_reasoning = number, is_reasoning

    def _write_call(self, piece: CallPiece, arguments: str) -> None:
        if piece.name:
            self._call = render_pb2.ToolCall(id=piece.call_id, name=piece.name)
            self._arguments = []
        if piece.name or arguments:
            self._arguments.append(arguments)
            delta = render_pb2.ToolCallDelta(
                index=piece.call_index, id=piece.call_id, name=piece.name, arguments_json=arguments
            )
            self._call_deltas.append(delta)
        if piece.is_last:
            self._call.arguments_json = "".join(self._arguments)
            self.tool_calls.append(self._call)
