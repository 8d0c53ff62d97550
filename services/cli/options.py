"""Command-line options made from configuration classes, so that each is declared once.

typer parses and prints the help. Nothing is converted here: the configuration class does that, for flags and
variables alike. (The command line of pydantic-settings cannot group options that several classes share, and
shows the names of enumerations and the path of the embedded model instead of what may be given.)
"""

import inspect
import os
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, TypeAlias, get_args

import typer
from pydantic.fields import FieldInfo

from services.render.config import RenderConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from shared.config import ServiceConfig, TlsConfig, check_environment, flag_of

SERVICES: dict[str, type[ServiceConfig]] = {
    "render": RenderConfig,
    "scheduler": SchedulerConfig,
    "worker": WorkerConfig,
}

# The options that were given, by field name, as text.
Flags: TypeAlias = dict[str, Any]
# Every field of every command: one environment may serve several of them.
_known_fields: set[str] = set()


def with_flags(
    *config_classes: type[TlsConfig],
    leave_out: frozenset[str] = frozenset(),
    group: Callable[[str], str | None] = lambda _name: None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the classes' fields as options; it gets those that were given as its first argument.

    The command's other parameters are typer's own. group: the panel of the help that a field is listed in.
    """
    fields: dict[str, FieldInfo] = {}
    # What is particular to a class comes first, what all share last.
    for is_own in (True, False):
        for config_class in config_classes:
            for name, field in config_class.model_fields.items():
                if (name in config_class.__annotations__) is is_own and name not in leave_out:
                    fields.setdefault(name, field)
    _known_fields.update(*(each.model_fields for each in config_classes))

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        _flags, *own = inspect.signature(run).parameters.values()

        def command(**given: Any) -> None:
            check_environment(os.environ, _known_fields)
            arguments = {parameter.name: given.pop(parameter.name) for parameter in own}
            run({name: value for name, value in given.items() if value is not None}, **arguments)

        options = [_option(name, field, group(name)) for name, field in fields.items()]
        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *options)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__doc__ = run.__doc__
        return command

    return decorate


def describe(field: FieldInfo) -> tuple[str, str]:
    """What a field does, with the words that it allows, and its default; "" if it has none."""
    text, _, default = (field.description or "").partition(" (default: ")
    if words := [
        str(word) for kind in _types_in(field.annotation) if issubclass(kind, Enum) for word in kind
    ]:
        text += f" One of {', '.join(words)}."
    if not default and field.default is not None and not field.is_required():
        is_list = isinstance(field.default, tuple)
        return text, ",".join(map(str, field.default)) if is_list else str(field.default)
    return text, default.removesuffix(")")


def _option(name: str, field: FieldInfo, panel: str | None) -> inspect.Parameter:
    is_switch = field.annotation is bool
    text, default = describe(field)
    option = typer.Option(
        None,
        flag_of(name),
        help=text if is_switch or not default else f"{text} (default: {default})",
        metavar=None if is_switch else _metavar(field),
        show_default=False,
        rich_help_panel=panel,
    )
    annotation: Any = bool | None if is_switch else str | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


def _metavar(field: FieldInfo) -> str:
    """The kind of value."""
    kinds = {"int": "N", "float": "NUMBER", "Path": "PATH", "Address": "HOST:PORT"}
    names = [kind.__name__ for kind in _types_in(field.annotation)]
    return next((kinds[name] for name in names if name in kinds), "TEXT")


def _types_in(annotation: Any) -> Iterator[type]:
    """The plain types inside Optional, Annotated and tuple."""
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for part in get_args(annotation):
        yield from _types_in(part)
