"""A caller of the scheduler: requests, whole answers, errors with their details."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2
from triptych.v1 import scheduler_pb2, types_pb2

from shared.errors import DETAILS_KEY

Response = scheduler_pb2.GenerateResponse


def request(
    prompt: Sequence[int], *, request_id: str = "", priority: int = 0, cache_salt: str = "", **params: Any
) -> scheduler_pb2.GenerateRequest:
    """Greedy, unless `params` say otherwise."""
    return scheduler_pb2.GenerateRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=types_pb2.SamplingParams(**({"temperature": 0} | params)),
        priority=priority,
        cache_salt=cache_salt,
    )


def prompt_of(length: int, first: int = 3) -> list[int]:
    """Prompts with different `first` share no prefix."""
    return [(first + 7 * index) % 900 for index in range(length)]


@dataclass
class Answer:
    """All events of a call that ended well."""

    events: list[Response] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        """The events' names, in order."""
        return [str(event.WhichOneof("event")) for event in self.events]

    def of_kind(self, kind: Any) -> list[Any]:
        """All events of one kind, without the envelope."""
        return [getattr(event, kind) for event in self.events if event.WhichOneof("event") == kind]

    def tokens(self, output_index: int = 0) -> list[int]:
        """An output's tokens."""
        return [
            token_id
            for event in self.events
            if event.output_index == output_index
            for token_id in event.chunk.token_ids
        ]

    def finished(self, output_index: int = 0) -> scheduler_pb2.OutputFinished:
        """An output's one end, after which it says nothing more."""
        own = [event for event in self.events if event.output_index == output_index]
        ends = [event for event in own if event.HasField("finished")]
        assert len(ends) == 1, f"{len(ends)} ends of output {output_index}"
        assert own[-1] is ends[0]
        return ends[0].finished

    @property
    def admitted(self) -> scheduler_pb2.RequestAdmitted:
        """The first event."""
        return self.events[0].admitted


async def collect(call: Any) -> Answer:
    """Reads a call to its end; raises its error."""
    answer = Answer()
    while (event := await call.read()) is not grpc.aio.EOF:
        answer.events.append(event)
    return answer


async def read_until(call: Any, kind: str) -> Response:
    """Reads up to the first event of a kind."""
    while True:
        event: Response = await call.read()
        if event.WhichOneof("event") == kind:
            return event


@dataclass(frozen=True)
class Refusal:
    """How a call failed."""

    code: grpc.StatusCode
    message: str
    reason: str
    field: str
    metadata: dict[str, str]
    retry_after: float | None


async def refusal_of(call: Any) -> Refusal:
    """The error that a call ends with; fails if it ends well."""
    try:
        answer = await collect(call) if hasattr(call, "read") else await call
    except grpc.aio.AioRpcError as error:
        return _refusal(error)
    raise AssertionError(f"ended well: {answer}")


def _refusal(error: grpc.aio.AioRpcError) -> Refusal:
    info, bad, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    packed = dict(error.trailing_metadata() or ()).get(DETAILS_KEY, b"")
    details = status_pb2.Status.FromString(packed).details
    for detail in details:
        assert any(detail.Unpack(each) for each in (info, bad, retry)), detail
    has_retry = any(detail.Is(retry.DESCRIPTOR) for detail in details)
    return Refusal(
        code=error.code(),
        message=error.details() or "",
        reason=info.reason,
        field=bad.field_violations[0].field if bad.field_violations else "",
        metadata=dict(info.metadata),
        retry_after=retry.retry_delay.ToTimedelta().total_seconds() if has_retry else None,
    )


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Returns when the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 what is waited for has no event
            await asyncio.sleep(0.005)
