"""The Jinja environment that chat templates are written for, sandboxed and bounded in time.

Hugging Face's templates rely on: trimmed blocks, `break` and `continue`, `raise_exception`, `strftime_now`,
`tojson` that escapes nothing, and the tag `generation`. Templates are code from the internet: they run in
Jinja's immutable sandbox, and every turn of a loop and every call of a macro looks at the clock.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from time import monotonic
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.render.tool_arguments import is_text


class TemplateTimeoutError(jinja2.TemplateRuntimeError):
    """The template ran longer than it may."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. Thread safe once built: each thread has its own deadline."""

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        """`now` is what `strftime_now` formats."""
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self.filters["tojson"] = _to_json
        self.tests["string"] = is_text
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: now().strftime(format)
        self._limits = _Limits()

    def compile_chat_template(self, source: str) -> tuple[jinja2.Template, nodes.Template]:
        """The template, ready to render, and its syntax tree. Raises jinja2.TemplateSyntaxError."""
        tree = self.parse(source)
        repeated: Iterator[Any] = tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))
        for node in repeated:
            node.body.insert(0, _clock_check(node.lineno))
        tree.set_environment(self)
        return self.from_string(tree), tree

    @contextmanager
    def time_limit(self, seconds: float) -> Iterator[None]:
        """Inside, in this thread, templates that run longer than this raise TemplateTimeoutError."""
        self._limits.deadline = monotonic() + seconds
        try:
            yield
        finally:
            self._limits.deadline = float("inf")

    def check_clock(self) -> None:
        """Called from inside every loop and macro."""
        if monotonic() > self._limits.deadline:
            raise TemplateTimeoutError("the template ran for too long")


class _Limits(threading.local):
    deadline = float("inf")


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training. Here it does nothing."""

    tags = {"generation"}  # noqa: RUF012 Jinja declares it as an instance's

    def parse(self, parser: Parser) -> nodes.Node:
        """A scope of its own, as where the mark is used: what is set inside is not seen outside."""
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def _clock_check(lineno: int) -> nodes.Node:
    """The statement `environment.check_clock()`."""
    call = nodes.Call(nodes.EnvironmentAttribute("check_clock"), [], [], None, None)
    return nodes.ExprStmt(call).set_lineno(lineno)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes < > & ' for HTML; models are trained on the characters themselves.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
