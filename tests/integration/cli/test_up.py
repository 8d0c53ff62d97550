"""`triptych up`: three services as one command, which end together."""

import json
import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from triptych.v1 import render_pb2, render_pb2_grpc, scheduler_pb2, types_pb2

from services.cli.up import UpConfig, plan
from shared.cores import num_usable_cores
from shared.demo_model import PATH as DEMO_MODEL
from tests.integration.cli.up import up, wait_until_gone
from tests.support.certificates import Authority
from tests.support.processes import run

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="children are looked up in /proc")
QUIET = ("--log-level", "warning")


def derender(channel: grpc.Channel, outbox: "SimpleQueue[render_pb2.DerenderRequest | None]") -> Any:
    """A call of the render process that lasts until the outbox says None."""
    outbox.put(render_pb2.DerenderRequest(params=render_pb2.DerenderParams()))
    call = render_pb2_grpc.RenderServiceStub(channel).Derender(iter(outbox.get, None), wait_for_ready=True)
    time.sleep(0.5)
    return call


@on_linux
def test_when_one_child_dies_the_rest_is_stopped_and_it_exits_with_1() -> None:
    with up(*QUIET) as process:
        process.wait_until_render_answers()
        children = process.children()
        assert sorted(children.values()) == ["render", "scheduler", "worker"]
        (victim,) = (pid for pid, name in children.items() if name == "scheduler")
        os.kill(victim, signal.SIGKILL)
        assert process.wait(20) == 1
        assert process.stdout.splitlines()[-1] == "scheduler ended with exit code -9; stopping the rest"
        wait_until_gone(children)


@on_linux
def test_ctrl_c_lets_a_running_call_end_then_exits_with_0() -> None:
    outbox: SimpleQueue[render_pb2.DerenderRequest | None] = SimpleQueue()
    with up(*QUIET) as process, grpc.insecure_channel(str(process.render)) as channel:
        process.wait_until_ready()
        children = process.children()
        events = derender(channel, outbox)
        process.send(signal.SIGINT)
        time.sleep(1.0)
        assert process.process.poll() is None
        admitted = scheduler_pb2.RequestAdmitted(generation_id="g", seeds=[1])
        finished = scheduler_pb2.OutputFinished(finish_reason=types_pb2.FINISH_REASON_LENGTH)
        for event in (
            scheduler_pb2.GenerateResponse(admitted=admitted),
            scheduler_pb2.GenerateResponse(finished=finished),
        ):
            outbox.put(render_pb2.DerenderRequest(event=event))
        outbox.put(None)
        assert [each.event.WhichOneof("event") for each in events][-1] == "finished"
        assert process.wait(20) == 0
        wait_until_gone(children)


@on_linux
def test_a_second_ctrl_c_ends_everything_at_once() -> None:
    outbox: SimpleQueue[render_pb2.DerenderRequest | None] = SimpleQueue()
    with up(*QUIET) as process, grpc.insecure_channel(str(process.render)) as channel:
        process.wait_until_render_answers()
        children = process.children()
        call = derender(channel, outbox)
        process.send(signal.SIGINT)
        time.sleep(1.0)
        process.send(signal.SIGINT)
        assert process.wait(5) == 1
        wait_until_gone(children)
        outbox.put(None)
        assert call.code() is grpc.StatusCode.UNAVAILABLE


@on_linux
def test_sigkill_of_up_itself_leaves_no_process() -> None:
    with up(*QUIET) as process:
        process.wait_until_render_answers()
        children = process.children()
        assert len(children) == 3
        process.kill()
        wait_until_gone(children)


def test_with_certificates_and_two_workers_the_services_find_each_other(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = authority.issue("everyone")
    flags = [f"--tls-ca={authority.path}", f"--tls-cert={tls['tls_cert']}", f"--tls-key={tls['tls_key']}"]
    with up(*flags, "--tls-client-auth", "--tls-allowed-peers", "everyone", workers=2) as process:
        process.wait_until_ready()
        lines = process.stdout.splitlines()
        assert sorted(line.split(" is ready on ")[0] for line in lines[:4]) == [
            "render", "scheduler", "worker 0", "worker 1",
        ]  # fmt: skip
        process.wait_until(lambda: "Ctrl-C" in process.stdout)
        for option in ("--tls-ca", "--tls-cert", "--tls-key", "-cacert", "-cert", "-key"):
            assert f" {option} {tmp_path}" in process.stdout
        assert "-plaintext" not in process.stdout
        loaded = [line for line in process.log if line["event"] == "model_loaded"]
        assert [line["threads"] for line in loaded] == [max(1, num_usable_cores() // 2)] * 2


def test_it_says_what_is_ready_and_what_to_try_and_that_works(tmp_path: Path) -> None:
    with up("--log-dir", str(tmp_path / "logs")) as process:
        process.wait_until(lambda: "Ctrl-C" in process.stdout)
        first, *ready = process.stdout.splitlines()[:4]
        assert first == f"the logs are in {tmp_path / 'logs'}"
        names = ("render", "scheduler", "worker")
        assert sorted(ready) == [
            f"{name} is ready on {address}" for name, address in zip(names, process.addresses, strict=True)
        ]
        (chat,) = (line for line in process.stdout.splitlines() if line.startswith("  triptych chat "))
        answer = run(*shlex.split(chat)[1:])
        assert (answer.returncode, answer.stderr) == (0, "")
        assert "Nadia" in answer.stdout
        (grpcurl,) = (line for line in process.stdout.splitlines() if line.startswith("  grpcurl "))
        arguments = shlex.split(grpcurl)
        request = json_format.Parse(arguments[arguments.index("-d") + 1], render_pb2.ChatRequest())
        assert arguments[-2:] == [str(process.render), "triptych.v1.TextService/Chat"]
        with grpc.insecure_channel(arguments[-2]) as channel:
            assert list(render_pb2_grpc.TextServiceStub(channel).Chat(request))
        # Nothing but its own lines on the terminal; the services' are in files.
        assert process.stderr == ""
        for name in names:
            events = [json.loads(line)["event"] for line in (tmp_path / "logs" / f"{name}.log").open()]
            assert events[0] == "starting"
            assert "listening" in events
        process.send(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_child_that_dies_shows_the_end_of_its_log(tmp_path: Path) -> None:
    model = Path(shutil.copytree(DEMO_MODEL, tmp_path / "model"))
    (model / "model.safetensors").write_bytes(b"garbage")
    with up("--model", str(model), "--log-dir", str(tmp_path / "logs")) as process:
        assert process.wait(30) == 2
        *_, reason, last = process.stdout.splitlines()
        assert last == "worker ended with exit code 2; stopping the rest"
        assert reason.startswith("  triptych: --model: ")
        assert "model.safetensors" in reason


def test_without_a_folder_the_logs_are_in_a_new_one() -> None:
    folders = set()
    for _ in range(2):
        (service, *_others) = plan(UpConfig(), {})
        assert service.log_file is not None
        folders.add(service.log_file.parent)
    assert len(folders) == 2
    for folder in folders:
        folder.rmdir()
