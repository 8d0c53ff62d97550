"""Texts of a template's own that hold control tokens, and how a template's syntax tree gets them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, SupportsIndex

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from services.render.request.tool_arguments import is_text
from services.render.tokenizer.control_tokens import ControlTokens

_NO: Any = NotImplemented


class OwnText(str):
    """A text of the template's own, or one made of such and of content. Reads as itself wherever a template
    compares, searches or looks up; in disguise once it is printed, which is how it gets into the prompt.

    What a template makes of it keeps both. A method that is not here gives a plain text, without disguise:
    control tokens in that are text.
    """

    _marked: str
    _control_tokens: ControlTokens

    def __new__(cls, text: str, marked: str, control_tokens: ControlTokens) -> "OwnText":
        """marked: the same text, the template's own control tokens in it in disguise."""
        own = super().__new__(cls, text)
        own._marked = marked
        own._control_tokens = control_tokens
        return own

    def __str__(self) -> str:
        return self._marked

    def __format__(self, format_spec: str) -> str:
        return format(self._marked, format_spec)

    def __add__(self, other: str) -> "OwnText":
        if not isinstance(other, str):
            return _NO
        return self._made(super().__add__(other), self._marked + str(other))

    def __radd__(self, other: str) -> "OwnText":
        if not isinstance(other, str):
            return _NO
        return self._made(str.__add__(other, self), str(other) + self._marked)

    def __mul__(self, count: SupportsIndex) -> "OwnText":
        return self._made(super().__mul__(count), self._marked * count)

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> str:
        printed: str = self._marked % values
        return printed

    def __getitem__(self, index: SupportsIndex | slice) -> "OwnText":
        return self._made(super().__getitem__(index), self._marked[index])

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    # As of any text, each of these.

    def lstrip(self, chars: str | None = None) -> "OwnText":
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None) -> "OwnText":
        return self[: len(super().rstrip(chars))]

    def strip(self, chars: str | None = None) -> "OwnText":
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str) -> "OwnText":
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> "OwnText":
        return self[: len(self) - len(suffix)] if suffix and self.endswith(suffix) else self

    def partition(self, sep: str) -> tuple[str, str, str]:
        head, middle, tail = self._cut(super().partition(sep), 0)
        return head, middle, tail

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        head, middle, tail = self._cut(super().rpartition(sep), 0)
        return head, middle, tail

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut(super().split(sep, maxsplit), None if sep is None else len(sep))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut(super().rsplit(sep, maxsplit), None if sep is None else len(sep))

    def splitlines(self, keepends: bool = False) -> list[str]:
        return self._cut(super().splitlines(keepends), 0 if keepends else None)

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        if not old:  # between all characters
            return read_marked(self._marked.replace("", str(new), count), self._control_tokens)
        return self._made(new, str(new)).join(self.split(old, count))

    def join(self, texts: Iterable[str]) -> str:
        return read_marked(self._marked.join(map(_marked_form, texts)), self._control_tokens)

    def lower(self) -> str:
        return self._recased(super().lower())

    def upper(self) -> str:
        return self._recased(super().upper())

    def capitalize(self) -> str:
        return self._recased(super().capitalize())

    def title(self) -> str:
        return self._recased(super().title())

    def casefold(self) -> str:
        return self._recased(super().casefold())

    def center(self, width: SupportsIndex, fillchar: str = " ") -> "OwnText":
        return self._made(super().center(width, fillchar), self._marked.center(width, fillchar))

    def ljust(self, width: SupportsIndex, fillchar: str = " ") -> "OwnText":
        return self._made(super().ljust(width, fillchar), self._marked.ljust(width, fillchar))

    def rjust(self, width: SupportsIndex, fillchar: str = " ") -> "OwnText":
        return self._made(super().rjust(width, fillchar), self._marked.rjust(width, fillchar))

    def _made(self, text: str, marked: str) -> "OwnText":
        return OwnText(text, marked, self._control_tokens)

    def _cut(self, parts: Iterable[str], gap: int | None) -> list[str]:
        """Parts of the text, from left to right, so many characters apart; None: wherever the next one is."""
        cut: list[str] = []
        start = 0
        for part in parts:
            start = start if gap is not None else self.find(part, start)
            cut.append(self[start : start + len(part)])
            start += len(part) + (gap or 0)
        return cut

    def _recased(self, text: str) -> str:
        """What was in disguise stays so."""
        if len(text) != len(self):
            return text
        triples = zip(text, str.__str__(self), self._marked, strict=True)
        mark = self._control_tokens.mark
        return self._made(text, "".join(new if one == marked else mark(new) for new, one, marked in triples))


# As errors of a template name it: a template knows no other kind of text.
OwnText.__name__ = "str"


def read_marked(text: str, control_tokens: ControlTokens) -> str:
    """A text as it was printed, some of it in disguise, so that it reads as itself again."""
    plain = control_tokens.unmark(text)
    return text if plain is text else OwnText(plain, text, control_tokens)


def as_written(value: Any) -> Any:
    """A text without disguise; anything else as it is."""
    return str.__str__(value) if isinstance(value, OwnText) else value


def concatenated(values: Sequence[Any], control_tokens: ControlTokens) -> str:
    """What they are one after the other when they are printed."""
    marked = "".join(map(str, values))
    if not any(isinstance(each, OwnText) for each in values):
        return read_marked(marked, control_tokens)
    # Not read from what is printed: a template may add to a long text again and again.
    return OwnText("".join([str(as_written(each)) for each in values]), marked, control_tokens)


def _marked_form(value: str) -> str:
    # What is no text is the error of whoever joins it.
    return str(value) if is_text(value) else value


# Filters that do what `~` and `%` do.
CONCAT = "own_text_concat"
MODULO = "own_text_modulo"


class OwnTextMarker(NodeTransformer):
    """Puts a template's own control tokens in disguise."""

    def __init__(self, control_tokens: ControlTokens, lookup: Callable[[OwnText], nodes.Expr]) -> None:
        """lookup: an expression that gives the text at run time; Jinja's constants can only be plain."""
        self._control_tokens = control_tokens
        self._lookup = lookup
        # Some text ends or begins inside a token: another one completes it, such as a role.
        self.has_open_texts = False

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802 named by Jinja
        """Text between tags: printed as it is."""
        node.data = self._mark(node.data)
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802 named by Jinja
        """A literal: printed, compared, or both."""
        if not isinstance(node.value, str) or (marked := self._mark(node.value)) == node.value:
            return node
        return self._lookup(OwnText(node.value, marked, self._control_tokens)).set_lineno(node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 named by Jinja
        """`a ~ b`, which Jinja compiles to a function that prints both."""
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes), CONCAT, []).set_lineno(node.lineno)

    def visit_Mod(self, node: nodes.Mod) -> nodes.Node:  # noqa: N802 named by Jinja
        """`a % b`, of numbers or of a text and its values."""
        self.generic_visit(node)
        return _filtered(node.left, MODULO, [node.right]).set_lineno(node.lineno)

    def _mark(self, text: str) -> str:
        self.has_open_texts = self.has_open_texts or self._control_tokens.is_open(text)
        return self._control_tokens.mark_tokens(text)


def _filtered(value: nodes.Expr, name: str, arguments: list[nodes.Expr]) -> nodes.Node:
    return nodes.Filter(value, name, arguments, [], None, None)
