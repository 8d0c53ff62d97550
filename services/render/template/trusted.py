"""Strings that know which of their characters the template wrote.

Jinja's own type for that, `markupsafe.Markup`, is trusted as a whole: content is escaped before it joins one.
That is too coarse here. A template keeps using the strings that it has joined, so content must read as itself
(`'</think>' in text`), and characters of content that are harmless where they stand must not become a control
token when others are taken out from between them (`replace`, `[::2]`, `lower`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

from jinja2 import nodes
from jinja2.sandbox import SandboxedFormatter
from jinja2.visitor import NodeTransformer

from services.render.tokenizer.control_tokens import TRUSTED, UNTRUSTED, ControlTokens

# One value in a format, such as `%s` or `%(name)-5d`, or `%%`.
_DIRECTIVE = re.compile(r"%(?:\((?P<key>[^()]*)\))?(?P<form>[-#0 +]*\d*(?:\.\d*)?[a-zA-Z%])")


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
        return Trusted(other) + self if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> "Trusted":
        return Trusted(super().__mul__(count), self._mask * count)

    __rmul__ = __mul__

    def __getitem__(self, index: SupportsIndex | slice) -> "Trusted":
        return Trusted(super().__getitem__(index), self._mask[index])

    def __mod__(self, values: Any) -> str:
        return _joined_as(super().__mod__(values), self._formatted(values))

    def removeprefix(self, prefix: str) -> "Trusted":
        return self[len(prefix) :] if self.startswith(prefix) else self

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        # Nothing stands between all characters.
        return Trusted(new).join(self.split(old, count)) if old else super().replace(old, new, count)

    def join(self, parts: Iterable[str]) -> str:
        parts = list(parts)
        return Trusted(super().join(parts), self._mask.join(map(mask_of, parts)))

    def _formatted(self, values: Any) -> Iterator[str]:
        """The pieces of `self % values`, but for rare formats (`%*d`)."""
        remaining = iter(values if isinstance(values, tuple) else (values,))
        end = 0
        for found in _DIRECTIVE.finditer(self):
            yield self[end : found.start()]
            end = found.end()
            key, form = found.groups()
            if form == "%":
                yield self[end - 1 : end]
                continue
            value = next(remaining, "") if key is None else values[key]
            yield str(value) if form == "s" else f"%{form}" % (value,)
        yield self[end:]


# As errors of a template name it: a template knows no other kind of string.
Trusted.__name__ = "str"


def _cutting(name: str) -> Callable[..., Any]:
    """A method that gives a part of the string, or some from left to right."""

    def method(self: Trusted, *args: Any, **named: Any) -> Any:
        made = getattr(str, name)(self, *args, **named)
        separator = named.get("sep", args[0] if args else None) if name.endswith("split") else None
        cut: list[str] = []
        start = 0
        for part in [made] if isinstance(made, str) else made:
            # At the start, or after what is stripped, and no part begins with that.
            start = self.find(part, start)
            cut.append(self[start : start + len(part)])
            start += len(part) + len(separator or "")
        return cut[0] if isinstance(made, str) else type(made)(cut)

    return method


def _in_another_case(name: str) -> Callable[[Trusted], str]:
    def method(self: Trusted) -> str:
        text: str = getattr(str, name)(self)
        # Some characters become two, none becomes no character.
        return Trusted(text, mask_of(self)) if len(text) == len(self) else text

    return method


for _name in (
    "strip", "lstrip", "rstrip", "removesuffix", "partition", "rpartition", "split", "rsplit", "splitlines",
):  # fmt: skip
    setattr(Trusted, _name, _cutting(_name))
for _name in ("lower", "upper", "title", "capitalize", "casefold"):
    setattr(Trusted, _name, _in_another_case(_name))


class TrustingFormatter(SandboxedFormatter):
    """`text.format` of one text. Literals in it are trusted if all of the text is, values as they are."""

    def vformat(self, format_string: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        self._is_trusted = UNTRUSTED not in mask_of(format_string)
        self._pieces: list[str] = []
        return _joined_as(super().vformat(format_string, args, kwargs), self._pieces)

    def parse(self, format_string: Any) -> Iterator[Any]:
        for literal, *field in super().parse(format_string):
            self._pieces.append(trusted(literal) if self._is_trusted else literal)
            yield literal, *field

    def format_field(self, value: Any, format_spec: str) -> str:
        text: str = super().format_field(value, format_spec) if format_spec else str(value)
        self._pieces.append(text)
        return text


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


def _joined_as(text: str, pieces: Iterable[str]) -> str:
    """The pieces, if they make up the text; otherwise the text alone, which is content then."""
    return whole if (whole := joined(pieces)) == text else text


def modulo(left: Any, right: Any) -> Any:
    """`left % right`, of numbers or of a format and its values."""
    values = right.values() if isinstance(right, dict) else right if isinstance(right, tuple) else (right,)
    if isinstance(left, str) and any(isinstance(value, Trusted) for value in values):
        return Trusted(left) % right
    return left % right


# A filter that does what `~` does; no template can name it.
CONCAT = " ~ "


class TrustLiterals(NodeTransformer):
    """Makes those of a template's literals Trusted that hold a control token, or one end of it."""

    def __init__(self, control_tokens: ControlTokens, lookup: Callable[[Trusted], nodes.Expr]) -> None:
        """lookup: an expression that gives the string at run time; Jinja's constants can only be plain."""
        self._control_tokens = control_tokens
        self._lookup = lookup

    def visit_Const(self, node: nodes.Const | nodes.TemplateData) -> nodes.Node:  # noqa: N802 named by Jinja
        """A literal inside a tag, of any type, or the text between tags."""
        value = node.value if isinstance(node, nodes.Const) else node.data
        if not isinstance(value, str) or not self._control_tokens.may_touch(value):
            return node
        return self._lookup(trusted(value)).set_lineno(node.lineno)

    visit_TemplateData = visit_Const  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 named by Jinja
        """`a ~ b`, which Jinja compiles to a function of its own."""
        self.generic_visit(node)
        concat = nodes.Filter(nodes.List(node.nodes), CONCAT, [], [], None, None)
        return concat.set_lineno(node.lineno)
