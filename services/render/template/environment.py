"""The Jinja environment that chat templates are written for, sandboxed and bounded in time.

Hugging Face's templates rely on: trimmed blocks, `break` and `continue`, `raise_exception`, `strftime_now`,
`tojson` that escapes nothing, and the tag `generation`. Templates are code from the internet: they run in
Jinja's immutable sandbox, and every turn of a loop and every call of a macro looks at the clock.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, do_forceescape, do_indent, do_join, do_striptags
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.render.request.tool_arguments import is_text
from services.render.template.time_limit import check_clock
from services.render.template.trusted import (
    CONCAT,
    MODULO,
    OwnText,
    OwnTextMarker,
    as_written,
    concatenated,
    read_marked,
)
from services.render.tokenizer.control_tokens import ControlTokens

# Of a rendering, and of any JSON in it.
MAX_CHARS = 64 * 1024 * 1024


# Methods that make characters of what is none.
_UNSAFE_METHODS = frozenset({"encode", "decode", "unescape", "striptags"})
# Formats that make a character of a number: `%c`; `{:c}`, or one whose kind is a value itself.
_PERCENT_C = re.compile(r"%(\([^)]*\))?[-#0 +*.\d]*c")
_BRACED_C = re.compile(r"c\}|:[^}]*\{")


class CompiledTemplate(NamedTuple):
    """A template, ready to render, and what its source tells."""

    template: jinja2.Template
    # The variables it reads.
    names: frozenset[str]
    # Some control token may be put together of a text of the template's and a variable, such as the role.
    has_open_texts: bool


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. Thread safe once built."""

    def __init__(self, control_tokens: ControlTokens, now: Callable[[], datetime] = datetime.now) -> None:
        """control_tokens: templates' own ones come out in disguise. now: what `strftime_now` formats."""
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self._control_tokens = control_tokens
        # The templates' literals that hold control tokens; compiled code looks them up.
        self.own_texts: list[OwnText] = []
        self.filters["tojson"] = _to_json
        self.filters["replace"] = self._replace
        self.filters["join"] = self._join
        self.filters["format"] = self._format
        self.filters["indent"] = self._indent
        # Entities become characters, so that any text could come out in disguise.
        self.filters["striptags"] = lambda value: self._control_tokens.unmark(do_striptags(as_written(value)))
        self.filters["e"] = self.filters["escape"] = lambda value: FILTERS["escape"](as_written(value))
        self.filters["forceescape"] = lambda value: do_forceescape(as_written(value))
        self.filters[CONCAT] = lambda values: concatenated(values, self._control_tokens)
        self.filters[MODULO] = self._modulo
        self.tests["string"] = is_text
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: now().strftime(format)

    def compile_chat_template(self, source: str) -> CompiledTemplate:
        """Raises jinja2.TemplateSyntaxError."""
        tree = self.parse(source)
        names = frozenset(node.name for node in tree.find_all(nodes.Name) if node.ctx == "load")
        has_open_texts = self._mark_own_texts(tree)
        repeated: Iterator[Any] = tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))
        for node in repeated:
            node.body.insert(0, _look_at_clock(node.lineno))
        tree.set_environment(self)
        template = self.from_string(tree)
        # Every rendering copies them: several times as fast from a dict as from Jinja's chain of dicts.
        template.globals = dict(template.globals)
        return CompiledTemplate(template, names, has_open_texts)

    @property
    def clock(self) -> None:
        """Looked at from inside every loop and macro. Raises the error of a time limit that has passed."""
        check_clock()

    def concat(self, pieces: Iterable[Any]) -> str:
        """Jinja's own hook: what a macro, or a block that is set, has printed becomes a value."""
        return read_marked("".join(map(str, pieces)), self._control_tokens)

    # The underscores are Jinja's: keyword arguments are the template's to name.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """As the sandbox does, but what a text's method makes of the template's own texts remains so."""
        text = getattr(__obj, "__self__", None)
        if type(text) is str and (__obj.__name__ == "join" or any(type(each) is OwnText for each in args)):
            __obj = getattr(__self._as_own(text), __obj.__name__)
        return __self._read(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox's own hook: `text.format`, here of the text as it is printed."""
        text = getattr(value, "__self__", None)
        own_method = getattr(str(text), value.__name__, None) if isinstance(text, OwnText) else None
        formatter = super().wrap_str_format(own_method or value)
        if formatter is None or not _BRACED_C.search(str(text)):
            return formatter
        return lambda *args, **kwargs: self._control_tokens.unmark(formatter(*args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """As the sandbox decides, but not what makes characters of bytes or entities: marks, it may be."""
        if attr in _UNSAFE_METHODS and self._control_tokens.texts:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def _read(self, value: Any) -> Any:
        """What is a text that was printed reads as itself again."""
        return read_marked(value, self._control_tokens) if type(value) is str else value

    def _as_own(self, text: str) -> OwnText:
        return text if isinstance(text, OwnText) else OwnText(text, text, self._control_tokens)

    def _replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        # Jinja's own filter looks for what is printed: a text in disguise.
        text, old, new = (each if type(each) in (str, OwnText) else str(each) for each in (value, old, new))
        text = self._as_own(text) if isinstance(new, OwnText) else text
        replaced: str = text.replace(old, new, -1 if count is None else count)
        return replaced

    def _modulo(self, left: Any, right: Any) -> Any:
        result = left % right
        if isinstance(left, str) and _PERCENT_C.search(left):
            return self._control_tokens.unmark(result)
        return self._read(result)

    def _format(self, text: Any, *values: Any, **named: Any) -> Any:
        return self._modulo(text if isinstance(text, str) else str(text), named or values)

    def _indent(self, value: Any, *args: Any, **kwargs: Any) -> str:
        printed = str(value) if isinstance(value, OwnText) else value
        return read_marked(do_indent(printed, *args, **kwargs), self._control_tokens)

    @jinja2.pass_eval_context
    def _join(self, context: EvalContext, *args: Any, **kwargs: Any) -> str:
        return read_marked(do_join(context, *args, **kwargs), self._control_tokens)

    def _mark_own_texts(self, tree: nodes.Template) -> bool:
        marker = OwnTextMarker(self._control_tokens, self._own_text)
        marker.visit(tree)
        return marker.has_open_texts

    def _own_text(self, text: OwnText) -> nodes.Expr:
        """The expression `environment.own_texts[index]`."""
        self.own_texts.append(text)
        index = nodes.Const(len(self.own_texts) - 1)
        return nodes.Getitem(nodes.EnvironmentAttribute("own_texts"), index, "load")


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training. Here it does nothing."""

    tags = {"generation"}  # noqa: RUF012 Jinja declares it as an instance's

    def parse(self, parser: Parser) -> nodes.Node:
        """A scope of its own, as where the mark is used: what is set inside is not seen outside."""
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def _look_at_clock(lineno: int) -> nodes.Node:
    """The statement `environment.clock`. Not a call: the sandbox checks each for ten times as long."""
    return nodes.ExprStmt(nodes.EnvironmentAttribute("clock")).set_lineno(lineno)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes < > & ' for HTML; models are trained on the characters themselves.
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None:
        return encoder.encode(value)
    # White space may make it hundreds of times as long as what was sent.
    pieces: list[str] = []
    num_chars = 0
    for piece in encoder.iterencode(value):
        check_clock()
        num_chars += len(piece)
        if num_chars > MAX_CHARS:
            raise jinja2.TemplateError(f"its JSON is longer than {MAX_CHARS} characters")
        pieces.append(piece)
    return "".join(pieces)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
