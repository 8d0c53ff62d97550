"""One JSON object a line, whoever logs it; checked in a process of its own, as logging is set up once."""

import json
import os
import platform
import pty
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Authority

ROOT = Path(__file__).parents[3]
PREAMBLE = """
import logging, structlog
from shared.config import LogLevel
from shared.log import configure_logging, get_logger
from shared.request_context import enter_call
log = get_logger()
configure_logging("worker", LogLevel.INFO)
"""


SCRIPT = r"""
log.info("plain", text="a\nb", number=3, letter="ü")
log.debug("below the level")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("bug")
    logging.getLogger("grpc").info("below a warning")
    logging.getLogger("grpc").exception("a library failed %s", 3)
enter_call([("x-request-id", "id-1")])
log.info("in a call")
"""


@pytest.fixture(scope="module")
def lines() -> dict[str, dict[str, Any]]:
    """What the script logs, by event."""
    result = subprocess.run(
        [sys.executable, "-c", PREAMBLE + SCRIPT], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert result.stdout == ""
    parsed = [json.loads(line) for line in result.stderr.split("\n") if line]
    return {line["event"]: line for line in parsed}


def test_a_line_is_one_object_with_service_level_time_and_fields(lines: dict[str, dict[str, Any]]) -> None:
    line = dict(lines["plain"])
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "service": "worker", "event": "plain", "level": "info", "text": "a\nb", "number": 3, "letter": "ü",
    }  # fmt: skip


def test_a_line_carries_the_request_it_belongs_to(lines: dict[str, dict[str, Any]]) -> None:
    assert "request_id" not in lines["plain"]
    assert lines["in a call"]["request_id"] == "id-1"
    assert {"trace_id", "span_id"} <= lines["in a call"].keys()


def test_what_is_below_the_level_is_left_out(lines: dict[str, dict[str, Any]]) -> None:
    assert list(lines) == ["plain", "bug", "a library failed 3", "in a call"]


def test_an_exception_is_one_line_with_its_traceback(lines: dict[str, dict[str, Any]]) -> None:
    assert "ZeroDivisionError" in lines["bug"]["exception"]
    assert lines["bug"]["level"] == "error"


def test_libraries_that_use_the_standard_library_log_the_same_form(lines: dict[str, dict[str, Any]]) -> None:
    line = lines["a library failed 3"]
    assert (line["service"], line["level"]) == ("worker", "error")
    assert "ZeroDivisionError" in line["exception"]


def test_the_first_line_says_version_and_what_is_not_the_default(tmp_path: Path) -> None:
    """And nothing of the private key."""
    authority = Authority(tmp_path)
    tls = {name: str(path) for name, path in authority.issue("worker").items()} | {
        "tls_ca": str(authority.path)
    }
    script = f"""
from services.worker.config import WorkerConfig
from shared.config import load_config
from shared.log import log_start
log_start(load_config(WorkerConfig, {{"listen": "127.0.0.1:7", "threads": "2", "device": "auto", **{tls}}}))
"""
    result = subprocess.run(
        [sys.executable, "-c", PREAMBLE + script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    line = json.loads(result.stderr)
    assert line["event"] == "starting"
    assert line["version"] == version("triptych")
    assert line["python"] == platform.python_version()
    assert platform.system() in line["platform"]
    tls.pop("tls_key")
    assert line["config"] == {"listen": "127.0.0.1:7", "threads": "2", **tls}


def test_on_a_terminal_lines_are_plain() -> None:
    terminal, other_end = pty.openpty()
    script = (
        PREAMBLE
        + 'log.info("happened", number=3)\ntry: 1 / 0\nexcept ZeroDivisionError: log.exception("bug")'
    )
    subprocess.run([sys.executable, "-c", script], stderr=other_end, cwd=ROOT, check=True)
    os.close(other_end)
    text = os.read(terminal, 100_000).decode()
    os.close(terminal)
    assert "happened" in text
    assert "ZeroDivisionError" in text
    assert "{" not in text.splitlines()[0]
    assert "UserWarning" not in text
