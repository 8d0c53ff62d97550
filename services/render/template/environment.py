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
from jinja2.filters import do_join, do_mark_safe, do_replace
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.render.template.trusted import (
    CONCAT,
    Trusted,
    TrustingFormatter,
    TrustLiterals,
    joined,
    modulo,
)
from services.render.time_limit import check_clock
from services.render.tokenizer.control_tokens import ControlTokens

# Of a rendering, and of any JSON in it.
MAX_CHARS = 64 * 1024 * 1024


_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,31}")


class CompiledTemplate(NamedTuple):
    """A template, ready to render, and what its source tells."""

    template: jinja2.Template
    # The variables it reads.
    names: frozenset[str]
    # Its string literals that could be the name of a role.
    words: frozenset[str]


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. Thread safe once built."""

    # Handed to `binop_table` by the sandbox.
    intercepted_binops = frozenset({"%"})

    def __init__(self, control_tokens: ControlTokens, now: Callable[[], datetime] = datetime.now) -> None:
        """control_tokens: literals that hold such become Trusted. now: what `strftime_now` formats."""
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self._control_tokens = control_tokens
        # Compiled code looks them up.
        self.literals: list[Trusted] = []
        self.binop_table["%"] = modulo
        self.filters[CONCAT] = self.concat
        self.filters["format"] = _format
        self.filters["join"] = _join
        self.filters["replace"] = _replace
        self.filters["safe"] = lambda value: value if isinstance(value, Trusted) else do_mark_safe(value)
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: now().strftime(format)

    def compile_chat_template(self, source: str) -> CompiledTemplate:
        """Raises jinja2.TemplateSyntaxError."""
        tree = self.parse(source)
        names = frozenset(node.name for node in tree.find_all(nodes.Name) if node.ctx == "load")
        constants = (node.value for node in tree.find_all(nodes.Const))
        words = frozenset(each for each in constants if isinstance(each, str) and _WORD.fullmatch(each))
        TrustLiterals(self._control_tokens, self._literal).visit(tree)
        repeated: Iterator[Any] = tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))
        for node in repeated:
            node.body.insert(0, _check_clock_node(node.lineno))
        tree.set_environment(self)
        template = self.from_string(tree)
        # Every rendering copies them: several times as fast from a dict as from Jinja's chain of dicts.
        template.globals = dict(template.globals)
        return CompiledTemplate(template, names, words)

    @property
    def clock(self) -> None:
        """Read in every loop and macro. Raises the error of a time limit that has passed."""
        check_clock()

    def concat(self, pieces: Iterable[Any]) -> str:
        """Jinja's own hook: what a macro, or a block that is set, has printed becomes a value."""
        return joined(map(str, pieces))

    # The underscores are Jinja's: keyword arguments are the template's to name.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """As the sandbox does, but a plain string's method keeps the trust of what it puts in."""
        text = getattr(__obj, "__self__", None)
        if type(text) is str and __obj.__name__ in ("join", "replace"):
            __obj = getattr(Trusted(text), __obj.__name__)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox's own hook: `text.format`."""
        text = getattr(value, "__self__", None)
        if not isinstance(text, str) or value.__name__ != "format":
            return super().wrap_str_format(value)
        return lambda *args, **named: TrustingFormatter(self).vformat(text, args, named)

    def _literal(self, text: Trusted) -> nodes.Expr:
        """The expression `environment.literals[index]`."""
        self.literals.append(text)
        index = nodes.Const(len(self.literals) - 1)
        return nodes.Getitem(nodes.EnvironmentAttribute("literals"), index, "load")


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training. Here it does nothing."""

    tags = {"generation"}  # noqa: RUF012 Jinja declares it as an instance's

    def parse(self, parser: Parser) -> nodes.Node:
        """A scope of its own, as where the mark is used: what is set inside is not seen outside."""
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def _check_clock_node(lineno: int) -> nodes.Node:
    """The statement `environment.clock`. Not a call: the sandbox checks each for ten times as long."""
    return nodes.ExprStmt(nodes.EnvironmentAttribute("clock")).set_lineno(lineno)


def _format(text: Any, *values: Any, **named: Any) -> Any:
    return modulo(text if isinstance(text, str) else str(text), named or values)


@jinja2.pass_eval_context
def _join(context: EvalContext, parts: Any, separator: Any = "", attribute: Any = None) -> str:
    text: str = do_join(context, parts, Trusted(str(separator)), attribute)
    return text


@jinja2.pass_eval_context
def _replace(context: EvalContext, text: Any, old: Any, new: Any, count: int | None = None) -> str:
    return do_replace(context, Trusted(str(text)) if isinstance(new, Trusted) else text, old, new, count)


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
