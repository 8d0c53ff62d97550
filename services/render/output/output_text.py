"""One output as its tokens come: decoded, parsed, cut at a stop string, and each token put with its text."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from triptych.v1 import render_pb2, types_pb2

from services.render.output.call_reader import CallPiece
from services.render.output.detokenizer import Detokenizer, DetokenizerFactory
from services.render.output.formats import FORMATS
from services.render.output.parser import CallEnd, Channel, Event, OutputParser, Written
from services.render.output.stop_checker import StopChecker
from services.render.output.stop_strings import StopStrings
from services.render.output.tag_scanner import Item, TagScanner
from services.render.tokenizer.tokenizer import Tokenizer


class _PendingToken(NamedTuple):
    """A token that is in no delta yet. Positions count the output's characters, tags included."""

    token_id: int
    logprobs: types_pb2.PositionLogprobs | None
    # Which token of the output it is, from 1.
    number: int
    # The end of the text that came with this token.
    text_end: int
    # The end of the text that this token is a part of: an incomplete character's is yet to come.
    end: int


class OutputTextFactory:
    """Makes the readers of outputs, for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._detokenizers = DetokenizerFactory(tokenizer)
        # Per parser: the tags that are one token.
        self._tag_tokens = {parser: _tag_tokens(tokenizer, each.tags) for parser, each in FORMATS.items()}

    def create(
        self, params: render_pb2.TextParams, stop_strings: StopStrings, call_id_prefix: str
    ) -> "OutputText":
        """For one output. stop_strings: those of the parameters. call_id_prefix: of the ids that are made for
        tool calls."""
        skips = params.skip_special_tokens if params.HasField("skip_special_tokens") else True
        skipped = self._tokenizer.special_token_ids if skips else frozenset()
        output_format = FORMATS.get(params.parser)
        tag_tokens = self._tag_tokens.get(params.parser, {})
        one_token = set(tag_tokens.values())
        return OutputText(
            self._detokenizers.create(skip_special_tokens=skips),
            {id_: Item("" if id_ in skipped else tag, tag) for id_, tag in tag_tokens.items()},
            TagScanner(tag for tag in (output_format.tags if output_format else ()) if tag not in one_token),
            OutputParser(output_format, starts_in_reasoning=params.starts_in_reasoning),
            StopChecker(
                stop_strings,
                include_stop_in_output=params.include_stop_in_output,
                min_tokens=params.min_tokens,
            ),
            call_id_prefix,
        )


class OutputText:
    """What is known of one output, and the tokens that wait for their text."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        tag_items: Mapping[int, Item],
        tag_scanner: TagScanner,
        parser: OutputParser,
        stop_checker: StopChecker,
        call_id_prefix: str,
    ) -> None:
        """tag_items: by token id, for the tags that are one token; the scanner finds the others."""
        self._detokenizer = detokenizer
        self._tag_items = tag_items
        self._tag_scanner = tag_scanner
        self._parser = parser
        self._stop_checker = stop_checker
        self._call_id_prefix = call_id_prefix
        self._channel = Channel.TEXT
        self._pending: deque[_PendingToken] = deque()
        self._num_chars_read = 0
        self._num_chars_parsed = 0
        self._delta = _Delta()
        # The call being written, and the pieces of its arguments.
        self._call = render_pb2.ToolCall()
        self._arguments: list[str] = []
        # The complete ones.
        self.tool_calls: list[render_pb2.ToolCall] = []
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

    def push(
        self, tokens: Iterable[tuple[int, types_pb2.PositionLogprobs | None]]
    ) -> render_pb2.TextDelta | None:
        """Takes tokens in until a stop string is known to be complete; returns what they release."""
        for token_id, logprobs in tokens:
            items = self._read(token_id)
            self.num_tokens += 1
            # An incomplete character will be one character at least.
            end = self._num_chars_read + self._detokenizer.has_incomplete_text
            self._pending.append(
                _PendingToken(token_id, logprobs, self.num_tokens, self._num_chars_read, end)
            )
            self._parse(items)
            if self.stop_string is not None:
                return self._take_delta(self._take_pending(all_of_them=True))
        return self._take_delta(self._take_pending()) if self._delta else None

    def finish(self) -> render_pb2.TextDelta | None:
        """The rest, and the tokens that have no text."""
        self._parse([*self._tag_scanner.push(self._detokenizer.finish()), *self._tag_scanner.finish()])
        if self.stop_string is None:
            self._write(self._parser.finish())
            self._flush()
        tokens = self._take_pending(all_of_them=True)
        return self._take_delta(tokens) if self._delta or tokens else None

    def _read(self, token_id: int) -> list[Item]:
        item = self._tag_items.get(token_id)
        if item is None:
            text = self._detokenizer.push(token_id)
            self._num_chars_read += len(text)
            return self._tag_scanner.push(text)
        # Nothing reaches across a tag: neither a character nor another tag.
        text = self._detokenizer.finish_before(token_id)
        self._num_chars_read += len(text) + len(item.text)
        return [*self._tag_scanner.push(text), *self._tag_scanner.finish(), item]

    def _parse(self, items: Iterable[Item]) -> None:
        for item in items:
            self._num_chars_parsed += len(item.text)
            self._write(self._parser.push(item))
            if self.stop_string is not None:
                return

    def _write(self, events: Iterable[Event]) -> None:
        """Up to a stop string."""
        for event in events:
            if isinstance(event, Written) and not event.is_leftover:
                self._write_checked(event)
                if self.stop_string is not None:
                    return
                continue
            self._flush()
            if isinstance(event, Written):
                self._delta.write(event.channel, event.text)
            elif isinstance(event, CallPiece):
                self._write_call(event)
            elif isinstance(event, CallEnd):
                self._call.arguments_json = "".join(self._arguments)
                self.tool_calls.append(self._call)

    def _flush(self) -> None:
        """A stop string reaches no further than here."""
        self._delta.write(self._channel, self._stop_checker.finish())

    def _write_call(self, piece: CallPiece) -> None:
        delta = render_pb2.ToolCallDelta(index=piece.index, arguments_json=piece.arguments)
        if piece.name:
            delta.id = piece.call_id or f"{self._call_id_prefix}-{piece.index}"
            delta.name = piece.name
            self._call = render_pb2.ToolCall(id=delta.id, name=delta.name)
            self._arguments = []
        self._arguments.append(piece.arguments)
        self._delta.tool_calls.append(delta)

    def _write_checked(self, written: Written) -> None:
        """Writes text that ends where the parser is. A stop string ends the output at the token whose text
        completes it, though later ones may have come before that is known."""
        if written.channel is not self._channel:
            self._flush()
            self._channel = written.channel
        for part, number in self._by_token(written.text):
            self._delta.write(self._channel, self._stop_checker.push(part, number))
            if self.stop_string is not None:
                self.num_tokens = number
                while self._pending and self._pending[-1].number > number:
                    self._pending.pop()
                return

    def _by_token(self, text: str) -> Iterator[tuple[str, int]]:
        """The parts of the text that came with each token, and the token's number."""
        start = self._num_chars_parsed - len(text)
        tokens = []
        for token in reversed(self._pending):
            if token.text_end <= start:
                break
            tokens.append(token)
        taken = 0
        for token in reversed(tokens):
            end = min(token.text_end - start, len(text))
            if end > taken:
                yield text[taken:end], token.number
                taken = end
        if taken < len(text):  # the end of an incomplete character comes with no token
            yield text[taken:], self.num_tokens

    def _take_pending(self, *, all_of_them: bool = False) -> list[_PendingToken]:
        """Those whose text is all sent, or known to be none."""
        num_final = self._num_chars_parsed - self._parser.num_held - self._stop_checker.num_held
        taken = []
        while self._pending and (all_of_them or self._pending[0].end <= num_final):
            taken.append(self._pending.popleft())
        return taken

    def _take_delta(self, tokens: Iterable[_PendingToken]) -> render_pb2.TextDelta:
        delta, self._delta = self._delta.to_message(), _Delta()
        for token in tokens:
            delta.token_ids.append(token.token_id)
            if token.logprobs is not None:
                delta.logprobs.append(token.logprobs)
        return delta


class _Delta:
    """What the next TextDelta says, its tokens apart."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self.tool_calls: list[render_pb2.ToolCallDelta] = []

    def __bool__(self) -> bool:
        return bool(self._text or self._reasoning or self.tool_calls)

    def write(self, channel: Channel, text: str) -> None:
        """Adds text."""
        if text:
            (self._text if channel is Channel.TEXT else self._reasoning).append(text)

    def to_message(self) -> render_pb2.TextDelta:
        """The wire form."""
        return render_pb2.TextDelta(
            text="".join(self._text),
            reasoning_content="".join(self._reasoning),
            tool_calls=self.tool_calls,
        )


def _tag_tokens(tokenizer: Tokenizer, tags: Iterable[str]) -> dict[int, str]:
    """The tags that the tokenizer has as one token, by its id."""
    encoded = {tag: tokenizer.encode(tag, add_special_tokens=False, field="tag") for tag in tags}
    return {ids[0]: tag for tag, ids in encoded.items() if len(ids) == 1 and tokenizer.token(ids[0]) == tag}
