"""The text of one output as its tokens come: decoding, stop strings, which tokens have which text."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from triptych.v1 import render_pb2, types_pb2

from services.render.detokenizer import DetokenizerFactory
from services.render.stop_checker import StopChecker


class _PendingToken(NamedTuple):
    """A token whose text has not all been sent."""

    token_id: int
    logprobs: types_pb2.PositionLogprobs | None
    # Characters of the output's text up to and including this token's.
    end: int


class OutputText:
    """One output: its decoder, its stop strings, and the tokens that wait for their text."""

    def __init__(self, detokenizers: DetokenizerFactory, params: render_pb2.TextParams) -> None:
        skips = params.skip_special_tokens if params.HasField("skip_special_tokens") else True
        self._detokenizer = detokenizers.create(skip_special_tokens=skips)
        self._stop_checker = StopChecker(
            params.stop, include_stop_in_output=params.include_stop_in_output, min_tokens=params.min_tokens
        )
        self._pending: deque[_PendingToken] = deque()
        self._num_chars_decoded = 0
        self._num_chars_sent = 0
        # Tokens that count, the one that ended the output included.
        self.num_tokens = 0
        self.is_ended = False

    @property
    def stop_string(self) -> str | None:
        """The stop string found."""
        return self._stop_checker.stop_string

    def push(
        self, tokens: Iterable[tuple[int, types_pb2.PositionLogprobs | None]]
    ) -> render_pb2.TextDelta | None:
        """Takes tokens in up to the one that completes a stop string; returns the text they release."""
        texts: list[str] = []
        for token_id, logprobs in tokens:
            self.num_tokens += 1
            text = self._detokenizer.push(token_id)
            self._num_chars_decoded += len(text)
            # An incomplete character will be one character at least.
            end = self._num_chars_decoded + self._detokenizer.has_incomplete_text
            self._pending.append(_PendingToken(token_id, logprobs, end))
            texts.append(self._stop_checker.push(text, self.num_tokens))
            if self.stop_string is not None:
                return self._last_delta("".join(texts))
        text = "".join(texts)
        self._num_chars_sent += len(text)
        if not text:
            return None
        return _delta(text, self._take_pending())

    def finish(self) -> render_pb2.TextDelta | None:
        """The rest of the text, and the tokens that had none."""
        tail = self._detokenizer.finish()
        released = self._stop_checker.push(tail, self.num_tokens)
        return self._last_delta(released + self._stop_checker.finish())

    def _take_pending(self) -> list[_PendingToken]:
        taken = []
        while self._pending and self._pending[0].end <= self._num_chars_sent:
            taken.append(self._pending.popleft())
        return taken

    def _last_delta(self, text: str) -> render_pb2.TextDelta | None:
        tokens = list(self._pending)
        self._pending.clear()
        return _delta(text, tokens) if text or tokens else None


def _delta(text: str, tokens: list[_PendingToken]) -> render_pb2.TextDelta:
    return render_pb2.TextDelta(
        text=text,
        token_ids=[token.token_id for token in tokens],
        logprobs=[token.logprobs for token in tokens if token.logprobs is not None],
    )
