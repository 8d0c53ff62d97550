"""A scheduler's side of a session, message by message."""

from contextlib import suppress
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2
from triptych.v1 import worker_pb2

from shared.errors import DETAILS_KEY, Reason, reason_in

GREEDY = worker_pb2.SamplingStep(temperature=0, top_p=1, repetition_penalty=1)


def sequence(
    token_ids: list[int] | None = None, *, context_len: int = 0, block_ids: tuple[int, ...] = (1,)
) -> worker_pb2.SequenceStep:
    """A few tokens in one block; one token is chosen after the last."""
    token_ids = [5, 6, 7] if token_ids is None else token_ids
    last = worker_pb2.SamplingStep(query_index=max(0, len(token_ids) - 1))
    last.MergeFrom(GREEDY)
    return worker_pb2.SequenceStep(
        sequence_key=1, token_ids=token_ids, context_len=context_len, block_ids=block_ids, samplings=[last]
    )


def step(step_id: int, *sequences: worker_pb2.SequenceStep) -> worker_pb2.Step:
    """One step; of a sequence of three tokens by default."""
    return worker_pb2.Step(step_id=step_id, sequences=sequences or [sequence()])


class Session:
    """One Execute call."""

    def __init__(self, stub: Any) -> None:
        self.call = stub.Execute()

    async def open(self, generation: int = 1, resume: str = "") -> worker_pb2.SessionOpened:
        """Opens it."""
        await self.send_open(generation, resume)
        return await self.opened()

    async def send_open(self, generation: int = 1, resume: str = "") -> None:
        """Asks for it to be opened."""
        message = worker_pb2.OpenSession(scheduler_id="test", generation=generation, resume_session_id=resume)
        await self.call.write(worker_pb2.ExecuteRequest(open=message))

    async def opened(self) -> worker_pb2.SessionOpened:
        """The answer to `send_open`."""
        opened: worker_pb2.SessionOpened = (await self.call.read()).opened
        return opened

    async def execute(self, message: worker_pb2.Step) -> worker_pb2.StepResult:
        """Runs one step."""
        await self.send(message)
        return await self.result()

    async def send(self, message: worker_pb2.Step) -> None:
        """Asks for one step."""
        await self.call.write(worker_pb2.ExecuteRequest(step=message))

    async def result(self) -> worker_pb2.StepResult:
        """The answer to `send`."""
        response = await self.call.read()
        assert response is not grpc.aio.EOF
        result: worker_pb2.StepResult = response.result
        return result

    async def end(self) -> tuple[grpc.StatusCode, Reason | None]:
        """How the worker ended it. Fails if it says anything else first."""
        with suppress(grpc.aio.AioRpcError):
            assert await self.call.read() is grpc.aio.EOF
        return await self.call.code(), reason_in(await self.call.trailing_metadata())

    async def field_at_fault(self) -> str:
        """Of a session that has ended."""
        metadata = dict(await self.call.trailing_metadata())
        violations = error_details_pb2.BadRequest()
        for detail in status_pb2.Status.FromString(metadata[DETAILS_KEY]).details:
            detail.Unpack(violations)
        return violations.field_violations[0].field
