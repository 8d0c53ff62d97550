"""The arguments of a past tool call, as chat templates expect them: some as text, some as a mapping."""

from typing import Any

from services.render.request.json_text import read_json


class ToolArguments(dict[str, Any]):
    """A mapping that reads as the model's own text where a template treats it as text.

    DeepSeek's templates concatenate the arguments, GLM's iterate over them, Kimi's ask `is string` first.
    Iterated, indexed by a name or JSON-encoded this is a mapping; printed, concatenated, sliced, filtered as
    text or asked for a text's method it is exactly what the model wrote. Empty text and `null` count as `{}`.
    Text that is not a JSON object stays as it is where text is wanted, and is the mapping {"arguments": text}
    where a mapping is: an old turn's malformed call neither fails the conversation nor disappears.
    """

    def __init__(self, text: str) -> None:
        value = _parse(text)
        super().__init__({} if value is None else value if isinstance(value, dict) else {"arguments": text})
        self._text = "{}" if value is None else text

    def __getattr__(self, name: str) -> Any:
        # Also where an argument has the method's name: no template knows the arguments of one function.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._text, name)

    def __getitem__(self, key: Any) -> Any:
        return self._text[key] if isinstance(key, slice) else super().__getitem__(key)

    def __mul__(self, count: int) -> str:
        return self._text * count

    __rmul__ = __mul__

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: str) -> str:
        return self._text + other

    def __radd__(self, other: str) -> str:
        return other + self._text


def is_text(value: object) -> bool:
    """Jinja's test `string`: true of texts, and of arguments, which read as text."""
    return isinstance(value, str | ToolArguments)


def _parse(text: str) -> Any:
    """The JSON value; None for nothing and null; the text itself if it is not JSON."""
    if not text.strip():
        return None
    try:
        return read_json(text)
    except ValueError:
        return text
