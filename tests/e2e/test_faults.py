"""kill -9 of each process in mid-stream: the call ends UNAVAILABLE, soon, and never as a clean end."""

import time

import grpc
import pytest
from triptych.v1 import render_pb2_grpc

from shared.errors import Reason, reason_in
from tests.e2e.stack import Stack, ask, chat_request, running_stack
from tests.support.processes import started

_REASONS = {"worker": Reason.WORKER_LOST, "scheduler": Reason.SCHEDULER_LOST, "render": None}
_RESTART_FLAGS = {
    "worker": lambda stack: (),
    "scheduler": lambda stack: ("--worker", str(stack.worker.address)),
    "render": lambda stack: ("--scheduler", str(stack.scheduler.address)),
}


@pytest.mark.parametrize("victim", ["worker", "scheduler", "render"])
async def test_killed_in_mid_stream_the_call_ends_unavailable_and_after_a_restart_the_next_works(
    victim: str,
) -> None:
    with running_stack() as stack:
        process = getattr(stack, victim)
        code, reason, seconds = await _kill_in_mid_stream(stack, victim)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert reason is _REASONS[victim]
        assert seconds < 5
        with started(victim, *_RESTART_FLAGS[victim](stack), port=process.address.port) as again:
            setattr(stack, victim, again)
            stack.wait_until_ready()
            async with grpc.aio.insecure_channel(str(stack.render.address)) as channel:
                stub = render_pb2_grpc.TextServiceStub(channel)
                answer = await ask(stub, [{"role": "user", "content": "Repeat: red"}])
    assert answer.text == "Sure: red"


async def _kill_in_mid_stream(stack: Stack, victim: str) -> tuple[grpc.StatusCode, Reason | None, float]:
    """The call's status and reason, and the seconds from the kill to its end."""
    messages = [{"role": "user", "content": "My name is Ada."}]
    request = chat_request(messages, max_tokens=1500, ignore_eos=True)
    killed_at = 0.0
    async with grpc.aio.insecure_channel(str(stack.render.address)) as channel:
        call = render_pb2_grpc.TextServiceStub(channel).Chat(request)
        num_events = 0
        try:
            async for response in call:
                assert not response.event.HasField("finished"), "a clean end for a broken output"
                num_events += 1
                if num_events == 5:
                    getattr(stack, victim).kill()
                    killed_at = time.monotonic()
        except grpc.aio.AioRpcError as error:
            return error.code(), reason_in(error.trailing_metadata()), time.monotonic() - killed_at
        raise AssertionError("the call ended with OK")
