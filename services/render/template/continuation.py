"""A last message that is left open, to be continued: marked where it ends, and the prompt cut there."""

from typing import Any

from services.render.template.capabilities import ASSISTANT, Message
from services.render.template.messages import REASONING_NAMES
from services.render.template.trusted import trusted

# Private-use characters: no ordinary text holds them. The space at the end shows whether the template trims.
_END = "\ue0f0end\ue0f1"
_END_MARK = _END + " "

# Around the reasoning in a model's output.
_REASONING_BEGIN, _REASONING_END = "<think>", "</think>"


def mark_end(message: Message, field: str) -> tuple[str | None, Message]:
    """The text to continue, and the message with a mark after it. None if the field has no text."""
    continued, marked = _with_mark(message.get(field))
    if continued is None:
        return None, message
    if field != "content":  # reasoning: under whatever name the template reads it
        names = [name for name in REASONING_NAMES if message.get(name) == continued]
        return continued, {**message, **dict.fromkeys(names, marked)}
    if message["role"] == ASSISTANT:
        marked = _with_trusted_tag(marked)
    return continued, {**message, field: marked}


def cut_at_end(text: str, continued: str) -> str | None:
    """The prompt up to the mark; None if the message is not in it."""
    end = text.rfind(_END)
    if end < 0 or continued.strip() not in text[:end]:
        return None
    is_trimmed = not text.startswith(_END_MARK, end)
    # A template may write the content more than once.
    before = text[:end].replace(_END if is_trimmed else _END_MARK, "")
    return before.rstrip() if is_trimmed else before


def _with_mark(content: Any) -> tuple[str | None, Any]:
    """Of a list of parts, the last part with a text is continued, as with transformers."""
    if isinstance(content, str):
        return content, content + _END_MARK
    if isinstance(content, list):
        for index, part in reversed(list(enumerate(content))):
            if isinstance(part, dict) and isinstance(text := part.get("text"), str):
                marked = {**part, "text": text + _END_MARK}
                return text, [*content[:index], marked, *content[index + 1 :]]
    return None, content


def _with_trusted_tag(content: Any) -> Any:
    """Content that opens reasoning and leaves it open is the model's own output: the tag is its token."""
    opens = isinstance(content, str) and content.startswith(_REASONING_BEGIN)
    if not opens or _REASONING_END in content:
        return content
    return trusted(_REASONING_BEGIN) + content.removeprefix(_REASONING_BEGIN)
