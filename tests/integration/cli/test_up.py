"""`triptych up`: three services as one command, which end together."""

import os
import signal
import sys
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from triptych.v1 import render_pb2, render_pb2_grpc, scheduler_pb2, types_pb2

from shared.cores import num_usable_cores
from tests.integration.cli.up import up, wait_until_gone
from tests.support.certificates import Authority

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
        assert sorted(line.split(" is ready on ")[0] for line in lines) == [
            "render", "scheduler", "worker 0", "worker 1",
        ]  # fmt: skip
        loaded = [line for line in process.log if line["event"] == "model_loaded"]
        assert [line["threads"] for line in loaded] == [max(1, num_usable_cores() // 2)] * 2
