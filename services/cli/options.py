"""Command-line options made from a configuration class, so that each is declared once."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, get_args

import typer
from pydantic.fields import FieldInfo

from shared.config import TlsConfig, flag_of


def command_from(
    config_classes: Iterable[type[TlsConfig]],
    run: Callable[[dict[str, Any]], None],
    leave_out: frozenset[str],
    message: str | None = None,
    files: Mapping[str, str] | None = None,
) -> Callable[..., None]:
    """A function whose parameters are the classes' fields; `run` gets those that were given, as text.

    message: help for the words that may follow; they come as a list under this name.
    files: help for each of the files that must follow, by its name.
    Nothing is converted here: the configuration class does that for flags and variables alike.
    """
    fields: dict[str, FieldInfo] = {}
    for config_class in config_classes:
        own = config_class.__annotations__
        # What is particular to the service comes first, what all services take last.
        for name, field in sorted(config_class.model_fields.items(), key=lambda item: item[0] not in own):
            if name not in leave_out:
                fields.setdefault(name, field)

    def command(**given: Any) -> None:
        run({name: value for name, value in given.items() if value is not None})

    parameters = [_parameter(name, field) for name, field in fields.items()]
    kind = inspect.Parameter.KEYWORD_ONLY
    for name, text in (files or {}).items():
        argument = typer.Argument(metavar=name.upper(), help=text)
        parameters.append(inspect.Parameter(name, kind, default=argument, annotation=str))
    if message is not None:
        words = typer.Argument(None, metavar="MESSAGE", help=message)
        parameters.append(inspect.Parameter("message", kind, default=words, annotation=list[str] | None))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    is_switch = field.annotation is bool
    option = typer.Option(
        None,
        flag_of(name),
        help=_help(field, is_switch),
        metavar=None if is_switch else _metavar(field),
        show_default=False,
    )
    annotation: Any = bool | None if is_switch else str | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


def _help(field: FieldInfo, is_switch: bool) -> str:
    notes = []
    if choices := _choices(field):
        notes.append("one of " + ", ".join(choices))
    text = field.description or ""
    if not is_switch and "(default" not in text and field.default is not None and not field.is_required():
        notes.append(f"default: {_shown(field.default)}")
    return f"{text} ({'; '.join(notes)})" if notes else text


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return str(default)


def _choices(field: FieldInfo) -> list[str]:
    """The allowed words of an enumeration."""
    return [str(word) for kind in _types_in(field.annotation) if issubclass(kind, Enum) for word in kind]


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
