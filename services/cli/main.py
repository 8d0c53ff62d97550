"""The commands. What the user can mend ends in one clear line and exit code 2."""

import sys
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any

import typer

from services.cli.chat import ChatConfig, chat
from services.cli.options import command_from
from services.cli.render_file import (
    SERVICE_FIELDS,
    DiffRenderConfig,
    RenderFileConfig,
    diff_render,
    render_file,
)
from services.cli.replay import ReplayConfig, replay
from services.cli.up import LEFT_OUT, UpConfig, up
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


def _worker(given: dict[str, Any]) -> None:
    config = load_config(WorkerConfig, given)
    tune_process()
    from services.worker.serve import run  # only this process imports torch

    run(config)


def _scheduler(given: dict[str, Any]) -> None:
    from services.scheduler.serve import run

    run(load_config(SchedulerConfig, given))


def _render(given: dict[str, Any]) -> None:
    from services.render.serve import run

    run(load_config(RenderConfig, given))


_NOTHING: frozenset[str] = frozenset()
_OUR_PACKAGES = ("services", "shared", "triptych")
_command("worker", help="The forward pass: owns weights and KV bytes.")(
    command_from([WorkerConfig], _worker, _NOTHING)
)
_command("scheduler", help="Continuous batching over one or more workers.")(
    command_from([SchedulerConfig], _scheduler, _NOTHING)
)
_command("render", help="Conversation to tokens, tokens to text; without weights.")(
    command_from([RenderConfig], _render, _NOTHING)
)
_command("up", help="All three as child processes, on this machine.")(
    command_from([UpConfig, RenderConfig, SchedulerConfig, WorkerConfig], up, LEFT_OUT)
)


def _chat(given: dict[str, Any]) -> None:
    message = " ".join(given.pop("message", ()))
    raise typer.Exit(chat(message, load_config(ChatConfig, given)))


_command("chat", help="Streams one answer, or converses if there is no message.")(
    command_from([ChatConfig], _chat, _NOTHING, message="One message; without it, a conversation.")
)


def _render_file(given: dict[str, Any]) -> None:
    conversations = given.pop("conversations")
    render_file(conversations, load_config(RenderFileConfig, given))


_command("render-file", help="Renders a file of OpenAI-style chat requests, with nothing running.")(
    command_from(
        [RenderFileConfig],
        _render_file,
        SERVICE_FIELDS,
        files={"conversations": "One request a line, as JSON; - reads standard input."},
    )
)


def _diff_render(given: dict[str, Any]) -> None:
    first, second = given.pop("first"), given.pop("second")
    raise typer.Exit(diff_render(first, second, load_config(DiffRenderConfig, given)))


_command("diff-render", help="Shows where two files of render-file first differ.")(
    command_from(
        [DiffRenderConfig],
        _diff_render,
        frozenset(TlsConfig.model_fields),
        files={
            "first": "A file that render-file wrote; - reads standard input.",
            "second": "Another one, or -.",
        },
    )
)


def _replay(given: dict[str, Any]) -> None:
    file = given.pop("file")
    raise typer.Exit(replay(file, load_config(ReplayConfig, given)))


_command("replay", help="Runs a worker's --record file on another worker, up to the first difference.")(
    command_from([ReplayConfig], _replay, _NOTHING, files={"file": "What a worker's --record wrote."})
)


def main() -> None:
    """The entry point of the `triptych` script."""
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
