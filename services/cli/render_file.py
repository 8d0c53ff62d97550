"""`triptych render-file` and `triptych diff-render`: templates tested with nothing running."""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, TextIO

from pydantic import Field
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from services.render.config import RenderConfig
from shared.config import ConfigError, ServiceConfig, TlsConfig

STDIN = "-"


class RenderFileConfig(RenderConfig):
    """What `render-file` takes besides the file."""

    output: Path | None = Field(
        None, description="Where to write, whole or not at all. (default: to standard output, line by line)"
    )
    text: bool = Field(False, description="Write each prompt's text too, as prompt_text.")


class DiffRenderConfig(TlsConfig):
    """What `diff-render` takes besides the files."""

    model: Path | None = Field(
        None, description="The folder whose tokenizer made the files: shows text, not only token ids."
    )


# Of the fields above, what only a service needs.
SERVICE_FIELDS = frozenset(ServiceConfig.model_fields) | {"scheduler", "parser"}


def render_file(conversations: str, config: RenderFileConfig) -> None:
    """Renders each line. Raises ConfigError for the first that cannot be."""
    from services.render.golden.render_file import render_lines
    from services.render.loading import load_renderer

    if config.output is not None and config.output.resolve() == Path(conversations).resolve():
        raise ConfigError(f"--output is {config.output}, the file that is read")
    with _open(conversations) as source:
        loaded = load_renderer(config)
        for warning in loaded.warnings:
            print(f"triptych: warning: {warning}", file=sys.stderr)
        # The reader of a pipe may close it early.
        with suppress(BrokenPipeError), _written(config.output) as target:
            lines = render_lines(
                loaded.renderer,
                _with_progress(source),
                _name_of(conversations),
                with_text=config.text,
                with_model=config.served_model_name is not None,
            )
            for line in lines:
                print(line, file=target)


def diff_render(first: str, second: str, config: DiffRenderConfig) -> int:
    """Prints the first difference. Returns the exit code: 0 if there is none, else 1."""
    from services.render.golden.render_diff import first_difference
    from services.render.golden.render_file import read_lines
    from services.render.model_folder import load_model_folder
    from services.render.tokenizer.tokenizer import Tokenizer

    if first == second == STDIN:
        raise ConfigError("only one of the two files can be standard input")
    decode, fingerprint = None, None
    if config.model is not None:
        tokenizer = Tokenizer(load_model_folder(config.model).tokenizer_file)
        decode, fingerprint = partial(tokenizer.decode, skip_special_tokens=False), tokenizer.fingerprint
    with _open(first) as one, _open(second) as other:
        ours = read_lines(one, _name_of(first), fingerprint)
        theirs = read_lines(other, _name_of(second), fingerprint)
        lines = first_difference(ours, theirs, decode)
    for line in lines:
        print(line)
    return 1 if lines else 0


def _name_of(file: str) -> str:
    return "standard input" if file == STDIN else file


def _open(name: str) -> AbstractContextManager[BinaryIO]:
    """The file, or standard input."""
    if name == STDIN:
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}") from None


@contextmanager
def _written(path: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that takes the path's place when all of it is written."""
    if path is None:
        with open(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False) as stdout:
            yield stdout
        return
    path = path.resolve()  # a link stays one
    if path.exists() and not path.is_file():
        raise ConfigError(f"--output is {path}, which is not a file")
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            yield file
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def _with_progress(source: BinaryIO) -> Iterator[bytes]:
    """The lines, with a bar on the terminal while they are read."""
    console = Console(stderr=True, force_terminal=sys.stderr.isatty())
    columns = (*Progress.get_default_columns()[:-1], TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        total = os.fstat(source.fileno()).st_size if source.seekable() else None
        task = progress.add_task("rendering", total=total)
        for line in source:
            yield line
            progress.advance(task, len(line))
