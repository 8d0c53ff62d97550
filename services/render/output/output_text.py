"""One output as its tokens come: decode → tag → parse → stop → delta, and each token put with its text."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from triptych.v1 import render_pb2, types_pb2

from services.render.output.delta_writer import DeltaWriter
from services.render.output.detokenizer import DetokenizerFactory
from services.render.output.formats import FORMATS
from services.render.output.parser import OutputParser
from services.render.output.segments import Segment, Stage
from services.render.output.stop_checker import StopChecker
from services.render.output.stop_strings import StopStrings
from services.render.output.string_parameters import value_types
from services.render.output.tag_scanner import TagScanner
from services.render.output.token_decoder import TokenDecoder
from services.render.output.token_texts import TokenTexts
from services.render.tokenizer.tokenizer import Tokenizer

# With its log-probabilities, if asked for.
_Token: TypeAlias = tuple[int, types_pb2.PositionLogprobs | None]


class OutputTextFactory:
    """Makes the readers of outputs, for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._detokenizers = DetokenizerFactory(tokenizer)
        self.token_texts = TokenTexts(tokenizer, self._detokenizers.token_bytes)
        # Per parser: the tags that are one token.
        self._tag_tokens = {parser: _tag_tokens(tokenizer, each.tags) for parser, each in FORMATS.items()}

    def create(
        self, params: render_pb2.TextParams, stop_strings: StopStrings, call_id_prefix: str
    ) -> "OutputText":
        """For one output. stop_strings: those of the parameters. call_id_prefix: of the ids that are made for
        tool calls."""
        skips = params.skip_special_tokens if params.HasField("skip_special_tokens") else True
        skipped = self._tokenizer.special_token_ids if skips else frozenset()
        tag_tokens = self._tag_tokens.get(params.parser, {})
        decoder = TokenDecoder(self._detokenizers.create(skip_special_tokens=skips), tag_tokens, skipped)
        stages: list[Stage] = []
        if (output_format := FORMATS.get(params.parser)) is not None:
            stages = [
                TagScanner(tag for tag in output_format.tags if tag not in tag_tokens.values()),
                OutputParser(
                    output_format,
                    starts_in_reasoning=params.starts_in_reasoning,
                    call_id_prefix=call_id_prefix,
                    value_types=value_types(params.string_parameters),
                ),
            ]
        stop_checker = StopChecker(
            stop_strings,
            include_stop_in_output=params.include_stop_in_output,
            stop_in_reasoning=params.stop_in_reasoning,
            min_tokens=params.min_tokens,
        )
        return OutputText(decoder, stages, stop_checker)


class OutputText:
    """What is known of one output, and the tokens that wait for their text."""

    def __init__(self, decoder: TokenDecoder, stages: Sequence[Stage], stop_checker: StopChecker) -> None:
        """stages: between the decoder and the stop checker."""
        self._decoder = decoder
        self._stop_checker = stop_checker
        self._stages = (*stages, stop_checker)
        self._delta = DeltaWriter()
        # In no delta yet.
        self._pending: deque[_Token] = deque()
        # Tokens that count, the one that ended the output included.
        self.num_tokens = 0
        self.is_ended = False

    @property
    def num_pending(self) -> int:
        """Tokens that wait for their text."""
        return len(self._pending)

    @property
    def stop_string(self) -> str | None:
        """The stop string found."""
        return self._stop_checker.stop_string

    @property
    def tool_calls(self) -> Sequence[render_pb2.ToolCall]:
        """The complete ones."""
        return self._delta.tool_calls

    @property
    def num_reasoning_tokens(self) -> int:
        """Of num_tokens, as Usage."""
        return self._delta.num_reasoning_tokens

    def push(self, tokens: Iterable[_Token]) -> render_pb2.TextDelta | None:
        """Takes tokens in until a stop string is known to be complete; returns what they release."""
        for token in tokens:
            self._pending.append(token)
            self.num_tokens += 1
            self._run(self._decoder.feed(token[0]))
            if self.stop_string is not None:
                return self._take_delta(len(self._pending))
        return self._take_delta(self._num_released()) if self._delta else None

    def finish(self) -> render_pb2.TextDelta | None:
        """The rest, and the tokens that have no text."""
        self._run(self._decoder.flush(), is_end=True)
        return self._take_delta(len(self._pending)) if self._delta or self._pending else None

    def _run(self, segments: Sequence[Segment], *, is_end: bool = False) -> None:
        for stage in self._stages:
            segments = [each for segment in segments for each in stage.feed(segment)]
            if is_end:
                segments += stage.flush()
        for segment in segments:
            self._delta.write(segment)
        if self.stop_string is not None:
            # Later tokens may have come before the match was known.
            while self.num_tokens > self._stop_checker.stop_number:
                self._pending.pop()
                self.num_tokens -= 1

    def _num_released(self) -> int:
        """The pending tokens whose text is all sent, or known to be none."""
        num_final = self._decoder.oldest - 1 if self._decoder.oldest else self.num_tokens
        for stage in self._stages:
            if (oldest := stage.oldest) is not None:
                num_final = min(num_final, oldest - 1)
        return max(0, num_final - (self.num_tokens - len(self._pending)))

    def _take_delta(self, num_tokens: int) -> render_pb2.TextDelta:
        delta = self._delta.take()
        for _ in range(num_tokens):
            token_id, logprobs = self._pending.popleft()
            delta.token_ids.append(token_id)
            if logprobs is not None:
                delta.logprobs.append(logprobs)
        return delta


def _tag_tokens(tokenizer: Tokenizer, tags: Iterable[str]) -> dict[int, str]:
    """The tags that the tokenizer has as one token, by its id."""
    encoded = {tag: tokenizer.encode(tag, add_special_tokens=False, field="tag") for tag in tags}
    return {ids[0]: tag for tag, ids in encoded.items() if len(ids) == 1 and tokenizer.token(ids[0]) == tag}
