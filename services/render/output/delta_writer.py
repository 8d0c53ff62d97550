"""Segments become a TextDelta; what an output has of calls and reasoning is kept count of."""

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

    def __bool__(self) -> bool:
        return bool(self._text or self._reasoning or self._call_deltas)

    def write(self, segment: Segment) -> None:
        if segment.call is not None:
            self._write_call(segment.call, segment.text)
        elif segment.text:
            (self._text if segment.channel is Channel.TEXT else self._reasoning).append(segment.text)

    def take(self) -> render_pb2.TextDelta:
        delta = render_pb2.TextDelta(
            text="".join(self._text),
            reasoning_content="".join(self._reasoning),
            tool_calls=self._call_deltas,
        )
        self._text, self._reasoning, self._call_deltas = [], [], []
        return delta

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
