"""Texts of a template's own that hold control tokens, and how a template's syntax tree gets them."""

from collections.abc import Callable
from typing import Any, SupportsIndex

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from services.render.control_tokens import ControlTokens


class OwnText(str):
    """Reads as itself wherever a template compares, searches or looks up; in disguise once it is printed,
    joined or formatted, which is how it gets into the prompt."""

    _marked: str

    def __new__(cls, text: str, marked: str | None = None) -> "OwnText":
        """marked: the same text in disguise; None: without."""
        own = super().__new__(cls, text)
        own._marked = str.__str__(text) if marked is None else marked
        return own

    def __str__(self) -> str:
        return self._marked

    def __format__(self, format_spec: str) -> str:
        return format(self._marked, format_spec)

    def __add__(self, other: str) -> str:
        return self._marked + str(other) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return str(other) + self._marked if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> str:
        return self._marked * count

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> str:
        return str(self._marked % values)

    def __getitem__(self, index: SupportsIndex | slice) -> "OwnText":
        return OwnText(super().__getitem__(index), self._marked[index])

    def lstrip(self, chars: str | None = None) -> "OwnText":
        """As of any text."""
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None) -> "OwnText":
        """As of any text."""
        return self[: len(super().rstrip(chars))]

    def strip(self, chars: str | None = None) -> "OwnText":
        """As of any text."""
        return self.lstrip(chars).rstrip(chars)


# As errors of a template name it: a template knows no other kind of text.
OwnText.__name__ = "str"


def as_written(text: str) -> str:
    """A text without disguise, to search for."""
    return str.__str__(text)


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
        return self._lookup(OwnText(node.value, marked)).set_lineno(node.lineno)

    def _mark(self, text: str) -> str:
        self.has_open_texts = self.has_open_texts or self._control_tokens.is_open(text)
        return self._control_tokens.mark_tokens(text)
