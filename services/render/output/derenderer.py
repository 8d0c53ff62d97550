"""A scheduler's events become text events, for all outputs of one request. No calls, no clock."""

from itertools import zip_longest

from triptych.v1 import render_pb2, scheduler_pb2, types_pb2

from services.render.output.output_text import OutputText, OutputTextFactory
from services.render.output.stop_strings import StopStrings
from shared.errors import out_of_range
from shared.sampling_params import MAX_N


class Derenderer:
    """Decodes, parses, looks for stop strings and counts what is kept. One per request.

    An output that a stop string ends is counted up to the token that completes the match; whatever the
    scheduler sends for it later is dropped.
    """

    def __init__(
        self,
        output_texts: OutputTextFactory,
        text_params: render_pb2.TextParams,
        *,
        wait_for_timings: bool = False,
    ) -> None:
        """wait_for_timings: a stop string's TextFinished comes with the scheduler's own `finished`, which has
        the timings (for who aborts the output there); otherwise it comes with the match."""
        self._output_texts = output_texts
        self._text_params = text_params
        self._stop_strings = StopStrings(text_params.stop)
        self._wait_for_timings = wait_for_timings
        self._admitted = scheduler_pb2.RequestAdmitted()
        self._usage = types_pb2.Usage()
        self._outputs: dict[int, OutputText] = {}
        self._stopped: list[int] = []

    @property
    def generation_id(self) -> str:
        """The scheduler's name for the request; empty until `admitted`."""
        return self._admitted.generation_id

    @property
    def is_complete(self) -> bool:
        """Every output has ended."""
        ended = sum(output.is_ended for output in self._outputs.values())
        return ended == self._num_outputs

    def weight(self, event: scheduler_pb2.GenerateResponse) -> int:
        """The size of what `push` works on: the event's bytes, and a token for each that it may release."""
        output = self._outputs.get(event.output_index)
        return event.ByteSize() + (0 if output is None else output.num_pending)

    def take_stopped(self) -> list[int]:
        """Outputs that a stop string ended since the last call: whoever generates aborts them."""
        stopped, self._stopped = self._stopped, []
        return stopped

    def push(self, event: scheduler_pb2.GenerateResponse) -> list[render_pb2.TextEvent]:
        """What this event makes known. Raises ServiceError if it names an output that does not exist,
        admits more outputs than a request can have, or admits a second time."""
        kind = event.WhichOneof("event")
        index = event.output_index
        if index >= self._num_outputs:
            raise out_of_range("event.output_index", index, f"0 to {self._num_outputs - 1}, as admitted")
        if kind == "admitted":
            if self._admitted.seeds or self._outputs:
                raise out_of_range("event", "admitted", "once, and before any other event")
            if (num_outputs := len(event.admitted.seeds)) > MAX_N:
                raise out_of_range("event.admitted.seeds", f"{num_outputs} seeds", f"at most {MAX_N}")
            self._admitted = event.admitted
            self._usage.prompt_tokens = event.admitted.prompt_tokens
        elif kind == "scheduled":
            self._usage.cached_tokens = event.scheduled.cached_tokens
        elif kind == "prompt_logprobs":
            text_event = render_pb2.TextEvent(output_index=index, prompt_logprobs=event.prompt_logprobs)
            self._output_texts.token_texts.fill(text_event.prompt_logprobs.positions)
            return [text_event]
        elif kind == "chunk":
            return self._push_chunk(index, event.chunk)
        elif kind == "finished":
            return self._push_finished(index, event.finished)
        return []

    @property
    def _num_outputs(self) -> int:
        return len(self._admitted.seeds) or 1

    def _output(self, index: int) -> OutputText:
        if index not in self._outputs:
            call_id_prefix = f"call-{self.generation_id}-{index}"
            self._outputs[index] = self._output_texts.create(
                self._text_params, self._stop_strings, call_id_prefix
            )
        return self._outputs[index]

    def _push_chunk(self, index: int, chunk: scheduler_pb2.TokenChunk) -> list[render_pb2.TextEvent]:
        output = self._output(index)
        if output.is_ended or output.stop_string is not None:
            return []
        delta = output.push(zip_longest(chunk.token_ids, chunk.logprobs[: len(chunk.token_ids)]))
        events = self._delta_events(index, delta)
        if output.stop_string is None:
            return events
        self._stopped.append(index)
        if not self._wait_for_timings:
            events.append(self._end(index, scheduler_pb2.OutputFinished()))
        return events

    def _delta_events(self, index: int, delta: render_pb2.TextDelta | None) -> list[render_pb2.TextEvent]:
        if delta is None:
            return []
        self._output_texts.token_texts.fill(delta.logprobs)
        return [render_pb2.TextEvent(output_index=index, delta=delta)]

    def _push_finished(
        self, index: int, finished: scheduler_pb2.OutputFinished
    ) -> list[render_pb2.TextEvent]:
        output = self._output(index)
        if output.is_ended:
            return []
        # A recorded stream may hold the end only.
        self._usage.prompt_tokens = self._usage.prompt_tokens or finished.usage.prompt_tokens
        self._usage.cached_tokens = self._usage.cached_tokens or finished.usage.cached_tokens
        events: list[render_pb2.TextEvent] = []
        if output.stop_string is None:
            events = self._delta_events(index, output.finish())
            output.num_tokens += finished.HasField("stop_token_id") and output.stop_string is None
        return [*events, self._end(index, finished)]

    def _end(self, index: int, finished: scheduler_pb2.OutputFinished) -> render_pb2.TextEvent:
        """The output's TextFinished. `finished` is the scheduler's, or empty if that is not waited for."""
        output = self._output(index)
        output.is_ended = True
        self._usage.completion_tokens = sum(each.num_tokens for each in self._outputs.values())
        self._usage.reasoning_tokens = sum(each.num_reasoning_tokens for each in self._outputs.values())
        end = render_pb2.TextFinished(
            finish_reason=finished.finish_reason, usage=self._usage, tool_calls=output.tool_calls
        )
        if finished.HasField("timings"):
            end.timings.CopyFrom(finished.timings)
        if output.stop_string is not None:
            end.finish_reason = types_pb2.FINISH_REASON_STOP
            end.stop_string = output.stop_string
        elif finished.HasField("stop_token_id"):
            end.stop_token_id = finished.stop_token_id
            if finished.HasField("stop_token_logprobs"):
                end.stop_token_logprobs.CopyFrom(finished.stop_token_logprobs)
                self._output_texts.token_texts.fill([end.stop_token_logprobs])
        if output.tool_calls and end.finish_reason == types_pb2.FINISH_REASON_STOP:
            end.finish_reason = types_pb2.FINISH_REASON_TOOL_CALLS
        if index < len(self._admitted.seeds):
            end.seed = self._admitted.seeds[index]
        return render_pb2.TextEvent(output_index=index, finished=end)
