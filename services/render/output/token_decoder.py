"""Tokens become segments: text as soon as its characters are complete, and the tags that are one token."""

from collections.abc import Mapping, Set

from services.render.output.detokenizer import Detokenizer
from services.render.output.segments import Segment


class TokenDecoder:
    """The tokens of one output, counted."""

    def __init__(self, detokenizer: Detokenizer, tags: Mapping[int, str], skipped: Set[int]) -> None:
        """tags: by token id. skipped: tokens that are left out of the text."""
        self._detokenizer = detokenizer
        self._tags = tags
        self._skipped = skipped
        self.num_tokens = 0
        # As Stage: of the incomplete character.
        self.oldest: int | None = None

    def feed(self, token_id: int) -> list[Segment]:
        self.num_tokens += 1
        tag = self._tags.get(token_id)
        if tag is not None:
            parts = () if token_id in self._skipped else (Segment(tag, self.num_tokens),)
            self.oldest = None
            return [
                *self._segments(self._detokenizer.flush_before(token_id)),
                Segment(tag if parts else "", self.num_tokens, tag=tag, parts=parts),
            ]
        text = self._detokenizer.feed(token_id)
        if not self._detokenizer.has_incomplete_text:
            self.oldest = None
        elif text or self.oldest is None:
            self.oldest = self.num_tokens
        return self._segments(text)

    def flush(self) -> list[Segment]:
        self.oldest = None
        return self._segments(self._detokenizer.flush())

    def _segments(self, text: str) -> list[Segment]:
        return [Segment(text, self.num_tokens)] if text else []
