"""What the user can mend: one clear line on stderr, exit code 2, nothing on stdout, nothing left running."""

import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.cli.main import main
from shared.demo_model import PATH as DEMO_MODEL
from tests.support.processes import free_base_port, free_port, run

SERVICES = ["worker", "scheduler", "render"]
COMMANDS = [*SERVICES, "up"]

Refuse = Callable[..., str]


def the_line(code: object, stdout: str, stderr: str) -> str:
    assert (code, stdout) == (2, ""), stderr
    (line,) = stderr.splitlines()
    assert line.startswith("triptych: ")
    return line.removeprefix("triptych: ")


def refused_by_process(*arguments: str) -> str:
    """For what is found out once the process has begun to be a service; its logs are off."""
    result = run(*arguments, "--log-level", "error")
    return the_line(result.returncode, result.stdout, result.stderr)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """For what is refused before anything starts: the command, run in this process."""

    def refuse(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["triptych", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        return the_line(caught.value.code, *capsys.readouterr())

    return refuse


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("command", SERVICES)
def test_a_port_in_use(command: str, taken_port: int) -> None:
    address = f"127.0.0.1:{taken_port}"
    line = refused_by_process(command, "--listen", address, "--metrics-listen", "127.0.0.1:0")
    assert line == f"--listen: cannot listen on {address}: Address already in use"


def test_a_metrics_port_in_use(taken_port: int) -> None:
    address = f"127.0.0.1:{taken_port}"
    line = refused_by_process(
        "scheduler", "--listen", f"127.0.0.1:{free_port()}", "--metrics-listen", address
    )
    assert line == f"--metrics-listen: cannot listen on {address}: Address already in use"


@pytest.mark.parametrize("above", [0, 1, 2, 3, 1000, 1003])
def test_up_needs_all_its_ports(refused: Refuse, above: int) -> None:
    base = free_base_port(4)
    with socket.create_server(("127.0.0.1", base + above)):
        line = refused("up", "--base-port", str(base), "--workers", "2")
    assert line == f"--base-port is {base}: 127.0.0.1:{base + above} is in use"


def test_a_part_that_is_not_installed(refused: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    for name in [name for name in sys.modules if name.startswith("services.render.")]:
        monkeypatch.delitem(sys.modules, name)
    line = refused("render")
    assert (
        line
        == "jinja2 is not installed; each service has its own in an extra: triptych[render], triptych[worker]"
    )


def test_a_replay_needs_to_be_told_on_which_worker(refused: Refuse) -> None:
    assert refused("replay", "x") == "--worker (or triptych_worker) is needed"


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_flag(refused: Refuse, command: str) -> None:
    assert refused(command, "--no-such-flag") == "No such option: --no-such-flag"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_value(refused: Refuse, command: str) -> None:
    line = refused(command, "--drain-seconds", "soon")
    assert line.startswith("--drain-seconds (or triptych_drain_seconds) is 'soon': ")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_variable(refused: Refuse, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("triptych_log_level", "loud")
    line = refused(command)
    assert line.startswith("--log-level (or triptych_log_level) is 'loud': ")
    assert "'debug', 'info', 'warning' or 'error'" in line


@pytest.mark.parametrize(
    "arguments", [*([each] for each in COMMANDS), ["chat", "hello"], ["replay", "x"], ["render-file", "x"]]
)
def test_a_variable_that_no_command_reads(
    refused: Refuse, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("triptych_workers", "2")  # of `up`: known to each
    monkeypatch.setenv("TRIPTYCH_MAX_NUM_SEQS", "8")
    assert refused(*arguments) == (
        "unknown environment variable: TRIPTYCH_MAX_NUM_SEQS (did you mean triptych_max_num_seqs?)"
    )


def test_up_with_logs_in_two_places(refused: Refuse, tmp_path: Path) -> None:
    assert refused("up", "--verbose", "--log-dir", str(tmp_path)) == (
        "--verbose and --log-dir exclude each other"
    )
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "logs")
    assert refused("up", "--log-dir", folder) == f"--log-dir: cannot make {folder!r}: Not a directory"


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unreadable_certificate(refused: Refuse, command: str, tmp_path: Path) -> None:
    folder = repr(str(tmp_path))  # whoever runs the tests may read every file, but no folder
    line = refused(command, "--tls-ca", str(tmp_path))
    assert line == f"--tls-ca (or triptych_tls_ca) is {folder}: cannot read {folder}: Is a directory"


def test_up_with_certificates_and_no_authority(refused: Refuse, tmp_path: Path) -> None:
    assert "go together" in refused("up", "--tls-cert", str(DEMO_MODEL / "config.json"))
    assert "--tls-client-auth needs" in refused("up", "--tls-client-auth")


@pytest.mark.parametrize("command", ["worker", "render", "up"])
def test_a_missing_model_folder(command: str, tmp_path: Path) -> None:
    assert str(tmp_path / "none") in refused_by_process(command, "--model", str(tmp_path / "none"))


@pytest.mark.parametrize("command", ["worker", "render", "up"])
def test_a_file_of_the_model_that_cannot_be_read(command: str, tmp_path: Path) -> None:
    model = Path(shutil.copytree(DEMO_MODEL, tmp_path / "model"))
    (model / "config.json").unlink()
    (model / "config.json").mkdir()
    assert str(model / "config.json") in refused_by_process(command, "--model", str(model))


def test_weights_that_cannot_be_read(tmp_path: Path) -> None:
    """Found out while loading, when the worker already listens."""
    model = Path(shutil.copytree(DEMO_MODEL, tmp_path / "model"))
    (model / "model.safetensors").write_bytes(b"garbage")
    listen = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
    line = refused_by_process("worker", "--model", str(model), *listen)
    assert line.startswith("--model: ")
    assert "model.safetensors" in line


def test_an_unknown_command(refused: Refuse) -> None:
    assert refused("serve") == "No such command 'serve'."


def test_a_service_that_chat_cannot_call(refused: Refuse) -> None:
    line = refused("chat", "--render", "nowhere", "hello")
    assert line.startswith("--render (or triptych_render) is 'nowhere': not HOST:PORT")
