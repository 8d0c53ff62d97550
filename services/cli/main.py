"""The commands. An error that the user can fix is one line on stderr and exit code 2."""

import sys
from functools import partial
from importlib.metadata import version
from typing import Annotated

import typer

from services.cli.chat import ChatConfig, chat
from services.cli.options import SERVICES, Flags, with_flags
from services.cli.render_file import (
    SERVICE_FIELDS,
    DiffRenderConfig,
    RenderFileConfig,
    diff_render,
    render_file,
)
from services.cli.replay import ReplayConfig, replay
from services.cli.up import LEFT_OUT, UpConfig, services_with, up
from services.render.config import RenderConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from services.worker.tuning import tune_process
from shared.config import ENV_PREFIX, ConfigError, TlsConfig, load_config

app = typer.Typer(
    help="Serving for language models with Multi-head Latent Attention, as three gRPC services.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
_command = partial(
    app.command, epilog=f"Each flag is also an environment variable: --some-flag is {ENV_PREFIX}some_flag."
)
_OUR_PACKAGES = ("services", "shared", "triptych")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"triptych {version('triptych')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None: ...


@_command("worker")
@with_flags(WorkerConfig)
def _worker(flags: Flags) -> None:
    """The forward pass: owns weights and KV bytes."""
    config = load_config(WorkerConfig, flags)
    tune_process()
    from services.worker.serve import run  # only this process imports torch

    run(config)


@_command("scheduler")
@with_flags(SchedulerConfig)
def _scheduler(flags: Flags) -> None:
    """Continuous batching over one or more workers."""
    from services.scheduler.serve import run

    run(load_config(SchedulerConfig, flags))


@_command("render")
@with_flags(RenderConfig)
def _render(flags: Flags) -> None:
    """Conversation to tokens, tokens to text; without weights."""
    from services.render.serve import run

    run(load_config(RenderConfig, flags))


@_command("up")
@with_flags(UpConfig, *SERVICES.values(), leave_out=LEFT_OUT, group=services_with)
def _up(flags: Flags) -> None:
    """All three as child processes, on this machine."""
    raise typer.Exit(up(flags))


@_command("chat")
@with_flags(ChatConfig)
def _chat(
    flags: Flags,
    message: Annotated[
        list[str] | None,
        typer.Argument(metavar="MESSAGE", help="One message; without it, a conversation."),
    ] = None,
) -> None:
    """Streams one answer, or converses if there is no message."""
    raise typer.Exit(chat(" ".join(message or ()), load_config(ChatConfig, flags)))


@_command("render-file")
@with_flags(RenderFileConfig, leave_out=SERVICE_FIELDS)
def _render_file(
    flags: Flags,
    conversations: Annotated[
        str,
        typer.Argument(metavar="CONVERSATIONS", help="One request a line, as JSON; - reads standard input."),
    ],
) -> None:
    """Renders a file of OpenAI-style chat requests, with nothing running."""
    render_file(conversations, load_config(RenderFileConfig, flags))


@_command("diff-render")
@with_flags(DiffRenderConfig, leave_out=frozenset(TlsConfig.model_fields))
def _diff_render(
    flags: Flags,
    first: Annotated[
        str, typer.Argument(metavar="FIRST", help="A file that render-file wrote; - reads standard input.")
    ],
    second: Annotated[str, typer.Argument(metavar="SECOND", help="Another one, or -.")],
) -> None:
    """Shows where two files of render-file first differ."""
    raise typer.Exit(diff_render(first, second, load_config(DiffRenderConfig, flags)))


@_command("replay")
@with_flags(ReplayConfig)
def _replay(
    flags: Flags, file: Annotated[str, typer.Argument(metavar="FILE", help="What a worker's --record wrote.")]
) -> None:
    """Runs a worker's --record file on another worker, up to the first difference."""
    raise typer.Exit(replay(file, load_config(ReplayConfig, flags)))


def main() -> None:
    arguments = sys.argv[1:] or ["--help"]
    try:
        code = app(arguments, standalone_mode=False)
    except (ConfigError, typer.TyperException) as error:
        text = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        print(f"triptych: {' '.join(text.split())}", file=sys.stderr)
        code = 2
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in _OUR_PACKAGES:
            raise
        extras = "each service has its own in an extra: triptych[render], triptych[worker]"
        print(f"triptych: {error.name} is not installed; {extras}", file=sys.stderr)
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code)
