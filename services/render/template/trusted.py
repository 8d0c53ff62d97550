"""Strings that know which of their characters the template wrote.

Jinja's own type for that, `markupsafe.Markup`, is trusted as a whole: content is escaped before it joins one.
That is too coarse here. A template goes on working with what it has joined, so content must read as itself
(`'</think>' in text`), and characters of content that are harmless where they stand must not become a control
token when others are taken out from between them (`replace`, `[::2]`, `lower`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from string import Formatter
from typing import Any, SupportsIndex

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from services.render.tokenizer.control_tokens import TRUSTED, UNTRUSTED, ControlTokens

# One value in a format: `%s`, `%(name)-5d`, or `%%`.
_DIRECTIVE = re.compile(r"%(?:\((?P<key>[^()]*)\))?[-#0 +]*\d*(?:\.\d*)?[a-zA-Z%]")

_NESTED_FIELD = re.compile(r"\{[^}]*\{")


class Trusted(str):
    """A string that the template wrote, at least in part.

    It is the string that plain Jinja would have, and a mask of the same length: TRUSTED or UNTRUSTED for each
    character. A method that is not here gives a plain string: control tokens in it are text, as in content.
    """

    __slots__ = ("_mask",)
    _mask: str

    def __new__(cls, text: Any, mask: str | None = None) -> "Trusted":
        """mask: None if that of the text, which for a plain string trusts no character."""
        made = super().__new__(cls, text)
        made._mask = mask_of(str(text)) if mask is None else mask
        return made

    def __str__(self) -> str:
        # Jinja prints each value with `str`, which gives a copy without a mask otherwise.
        return self

    def __add__(self, other: str) -> "Trusted":
        if not isinstance(other, str) or hasattr(other, "__html__"):
            return NotImplemented
        return Trusted(super().__add__(other), self._mask + mask_of(other))

    def __radd__(self, other: str) -> "Trusted":
        if not isinstance(other, str):
            return NotImplemented
        return Trusted(str.__add__(other, self), mask_of(other) + self._mask)

    def __mul__(self, count: SupportsIndex) -> "Trusted":
        return Trusted(super().__mul__(count), self._mask * count)

    __rmul__ = __mul__

    def __getitem__(self, index: SupportsIndex | slice) -> "Trusted":
        return Trusted(super().__getitem__(index), self._mask[index])

    def __mod__(self, values: Any) -> str:
        return _joined_as(super().__mod__(values), self._formatted(values))

    def lstrip(self, chars: str | None = None) -> "Trusted":
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None) -> "Trusted":
        return self[: len(super().rstrip(chars))]

    def strip(self, chars: str | None = None) -> "Trusted":
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str) -> "Trusted":
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> "Trusted":
        return self[: len(self) - len(suffix)] if self.endswith(suffix) else self

    def partition(self, sep: str) -> tuple[str, str, str]:
        head, middle, tail = self._cut(super().partition(sep))
        return head, middle, tail

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        head, middle, tail = self._cut(super().rpartition(sep))
        return head, middle, tail

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut(super().split(sep, maxsplit), len(sep or ""))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut(super().rsplit(sep, maxsplit), len(sep or ""))

    def splitlines(self, keepends: bool = False) -> list[str]:
        return self._cut(super().splitlines(keepends))

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        # Nothing stands between all characters.
        return Trusted(new).join(self.split(old, count)) if old else super().replace(old, new, count)

    def join(self, parts: Iterable[str]) -> str:
        parts = list(parts)
        return Trusted(super().join(parts), self._mask.join(map(mask_of, parts)))

    def _cut(self, parts: Sequence[str], gap: int = 0) -> list[str]:
        """Parts of the string, from left to right, at least so far apart. Where they are further apart, white
        space is between them, with which none begins."""
        cut: list[str] = []
        start = 0
        for part in parts:
            start = self.find(part, start)
            cut.append(self[start : start + len(part)])
            start += len(part) + gap
        return cut

    def _formatted(self, values: Any) -> Iterator[str]:
        """The pieces of `self % values`, but for rare formats (`%*d`)."""
        remaining = iter(values if isinstance(values, tuple) else (values,))
        end = 0
        for found in _DIRECTIVE.finditer(self):
            directive, key = found[0], found["key"]
            yield self[end : found.start()]
            end = found.end()
            if directive.endswith("%"):
                yield self[end - 1 : end]
                continue
            value = next(remaining, "") if key is None else values[key]
            is_bare = directive in ("%s", f"%({key})s")
            yield str(value) if is_bare else directive % ((value,) if key is None else {key: value})
        yield self[end:]


# As errors of a template name it: a template knows no other kind of string.
Trusted.__name__ = "str"


def _in_another_case(name: str) -> Callable[[Trusted], str]:
    def method(self: Trusted) -> str:
        text: str = getattr(str, name)(self)
        # No character gives none, so that each gave one if there are as many.
        return Trusted(text, mask_of(self)) if len(text) == len(self) else text

    return method


def _padded(name: str) -> Callable[..., str]:
    def method(self: Trusted, width: SupportsIndex, fillchar: str = " ") -> str:
        pad = getattr(str, name)
        return Trusted(pad(self, width, fillchar), pad(mask_of(self), width, UNTRUSTED))

    return method


for _name in ("lower", "upper", "title", "capitalize", "casefold"):
    setattr(Trusted, _name, _in_another_case(_name))
for _name in ("center", "ljust", "rjust"):
    setattr(Trusted, _name, _padded(_name))


def trusted(text: str) -> Trusted:
    """A string that the template wrote."""
    return Trusted(text, TRUSTED * len(text))


def mask_of(text: str) -> str:
    """TRUSTED or UNTRUSTED for each character of any string."""
    return text._mask if isinstance(text, Trusted) else UNTRUSTED * len(text)


def joined(pieces: Iterable[str]) -> str:
    """The pieces one after the other; a plain string if all are."""
    pieces = list(pieces)
    text = "".join(pieces)
    if not any(isinstance(piece, Trusted) for piece in pieces):
        return text
    return Trusted(text, "".join(map(mask_of, pieces)))


def modulo(left: Any, right: Any) -> Any:
    """`left % right`, of numbers or of a format and its values."""
    values = right.values() if isinstance(right, dict) else right if isinstance(right, tuple) else (right,)
    if isinstance(left, str) and any(isinstance(value, Trusted) for value in values):
        return Trusted(left) % right
    return left % right


def formatted(text: str, formatter: Formatter, args: Sequence[Any], named: Mapping[str, Any]) -> str:
    """`text.format(*args, **named)`."""
    is_trusted = UNTRUSTED not in mask_of(text)

    def pieces() -> Iterator[str]:
        positions = count()
        for literal, name, spec, conversion in formatter.parse(text):
            yield trusted(literal) if is_trusted else literal
            if name is not None:
                value, _ = formatter.get_field(name or str(next(positions)), args, named)
                value = formatter.convert_field(value, conversion)
                yield formatter.format_field(value, spec) if spec else str(value)

    whole = formatter.vformat(text, args, named)
    # A format that is itself a value (`{:{}}`) is not followed.
    return whole if _NESTED_FIELD.search(text) else _joined_as(whole, pieces())


def indented(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """What Jinja's filter `indent` does."""
    indention = width if isinstance(width, str) else " " * width
    pieces = [indention] if first else []
    for index, line in enumerate((text + "\n").splitlines()):
        pieces += ["\n", indention if line or blank else "", line] if index else [line]
    return joined(pieces)


def _joined_as(text: str, pieces: Iterable[str]) -> str:
    """The pieces, if they make up the text; otherwise the text alone, which is content then."""
    return whole if (whole := joined(pieces)) == text else text


# A filter that does what `~` does; no template can name it.
CONCAT = " ~ "


class TrustLiterals(NodeTransformer):
    """Makes those of a template's literals Trusted that hold a control token, or one end of it."""

    def __init__(self, control_tokens: ControlTokens, lookup: Callable[[Trusted], nodes.Expr]) -> None:
        """lookup: an expression that gives the string at run time; Jinja's constants can only be plain."""
        self._control_tokens = control_tokens
        self._lookup = lookup

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802 named by Jinja
        """Text between tags."""
        return self._trust(node, node.data)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802 named by Jinja
        """A literal inside a tag, of any type."""
        return self._trust(node, node.value) if isinstance(node.value, str) else node

    def _trust(self, node: nodes.Node, text: str) -> nodes.Node:
        if not self._control_tokens.may_touch(text):
            return node
        return self._lookup(trusted(text)).set_lineno(node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 named by Jinja
        """`a ~ b`, which Jinja compiles to a function of its own."""
        self.generic_visit(node)
        concat = nodes.Filter(nodes.List(node.nodes), CONCAT, [], [], None, None)
        return concat.set_lineno(node.lineno)
