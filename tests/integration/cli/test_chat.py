"""`triptych chat`, against `triptych up`."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.integration.cli.up import Up, up
from tests.support.processes import free_port, run

MESSAGE = "My name is Nadia."
ANSWER = "Nice to meet you, Nadia."


@pytest.fixture(scope="module")
def running() -> Iterator[Up]:
    with up(environment={"triptych_max_num_seqs": "8", "RENDER_PORT": "tcp://10.0.0.1:50051"}) as process:
        process.wait_until_ready()
        yield process


def test_one_message_gets_one_answer(running: Up) -> None:
    result = run("chat", "--render", str(running.render), MESSAGE)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{ANSWER}\n", "")


def test_words_are_one_message_and_the_service_may_be_named_by_a_variable(running: Up) -> None:
    result = run("chat", *MESSAGE.split(), environment={"triptych_render": str(running.render)})
    assert result.stdout == f"{ANSWER}\n"


def test_timings_add_up_to_the_whole(running: Up) -> None:
    result = run("chat", "--render", str(running.render), "--timings", MESSAGE)
    assert result.returncode == 0
    assert result.stdout.startswith(f"{ANSWER}\n")
    rows = [line.split("│") for line in result.stdout.splitlines() if line.startswith("│")]
    milliseconds = [float(row[2]) for row in rows]
    assert len(rows) == 6
    assert all(each >= 0 for each in milliseconds)
    total = float(result.stdout.partition(" ms, first text after")[0].split()[-1])
    assert sum(milliseconds) == pytest.approx(total, abs=0.5)


def test_without_a_message_it_converses(running: Up) -> None:
    lines = f"{MESSAGE}\n\nWhat is my name?\n"
    result = run("chat", "--render", str(running.render), stdin=lines)
    assert (result.returncode, result.stdout) == (0, f"{ANSWER}\nYour name is Nadia.\n")


def test_no_prompt_and_no_answer_is_logged(running: Up) -> None:
    """The services' logs, at level info, after all of the above and this."""
    run("chat", "--render", str(running.render), f"{MESSAGE} The code for tulip is 4821.")
    assert any(line["event"] == "request_finished" for line in running.log)
    for text in ("Nadia", "tulip", "Nice to meet"):  # a number may be part of an id
        assert text not in running.stderr


def test_ctrl_c_at_the_prompt_ends_it(running: Up) -> None:
    terminal, its_end = pty.openpty()
    arguments = [sys.executable, "-m", "services.cli", "chat", "--render", str(running.render)]
    process = subprocess.Popen(
        arguments,
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        # Where this suite runs in the background of a shell, it ignores the signal, and so would its child.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(its_end)
    try:
        shown = b""
        while not shown.endswith(b"> "):
            shown += os.read(terminal, 1000)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 130
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_when_nobody_listens_it_says_so_in_one_line() -> None:
    address = f"127.0.0.1:{free_port()}"
    result = run("chat", "--render", address, MESSAGE)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"triptych: {address}: UNAVAILABLE: ")
