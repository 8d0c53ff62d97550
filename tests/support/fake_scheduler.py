"""A scheduler for tests of render: plays a script, and records what it was asked."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from triptych.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2

Response = scheduler_pb2.GenerateResponse


class Generation:
    """One Generate call, as its script sees it."""

    def __init__(self, request: scheduler_pb2.GenerateRequest, context: Any) -> None:
        self.request = request
        self.context = context
        # Set per output when it is aborted.
        self.aborted: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        # Set when the call has ended, however it did.
        self.ended = asyncio.Event()


Script = Callable[[Generation], AsyncIterator[Response]]


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Every Generate plays `script`; AbortRequest sets the output's event."""

    def __init__(self, script: Script, model_info: types_pb2.ModelInfo | None = None) -> None:
        self.script = script
        self.model_info = model_info or types_pb2.ModelInfo(max_model_len=2048, max_logprobs=5)
        self.generations: list[Generation] = []
        self.aborts: list[scheduler_pb2.AbortRequestRequest] = []
        self.num_live = 0

    async def Generate(
        self, request: scheduler_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[scheduler_pb2.GenerateResponse]:
        """Plays the script."""
        generation = Generation(request, context)
        self.generations.append(generation)
        self.num_live += 1
        try:
            async for event in self.script(generation):
                yield event
        finally:
            self.num_live -= 1
            generation.ended.set()

    async def AbortRequest(
        self, request: scheduler_pb2.AbortRequestRequest, context: Any
    ) -> scheduler_pb2.AbortRequestResponse:
        """Records, and tells the script."""
        self.aborts.append(request)
        self.generations[-1].aborted[request.output_index].set()
        return scheduler_pb2.AbortRequestResponse(num_aborted=1)

    async def GetModelInfo(
        self, request: scheduler_pb2.SchedulerServiceGetModelInfoRequest, context: Any
    ) -> scheduler_pb2.SchedulerServiceGetModelInfoResponse:
        """The limits."""
        return scheduler_pb2.SchedulerServiceGetModelInfoResponse(model_info=self.model_info)


def admitted(seeds: Sequence[int] = (7,), prompt_tokens: int = 10) -> Response:
    """The first event."""
    return Response(
        admitted=scheduler_pb2.RequestAdmitted(
            generation_id="generation-1", seeds=seeds, max_tokens=100, prompt_tokens=prompt_tokens
        )
    )


def scheduled(cached_tokens: int = 0) -> Response:
    """The second event."""
    return Response(scheduled=scheduler_pb2.RequestScheduled(cached_tokens=cached_tokens))


def chunk(token_ids: Sequence[int], output_index: int = 0, with_logprobs: bool = False) -> Response:
    """New tokens; the log-probability of each is minus its id."""
    logprobs = [
        types_pb2.PositionLogprobs(token=types_pb2.TokenLogprob(token_id=each, logprob=-float(each)))
        for each in token_ids
    ]
    return Response(
        output_index=output_index,
        chunk=scheduler_pb2.TokenChunk(token_ids=token_ids, logprobs=logprobs if with_logprobs else ()),
    )


def finished(
    finish_reason: types_pb2.FinishReason.ValueType = types_pb2.FINISH_REASON_LENGTH,
    output_index: int = 0,
    stop_token_id: int | None = None,
    total_seconds: float = 1.5,
) -> Response:
    """The end of an output."""
    return Response(
        output_index=output_index,
        finished=scheduler_pb2.OutputFinished(
            finish_reason=finish_reason,
            stop_token_id=stop_token_id,
            timings=types_pb2.RequestTimings(total_seconds=total_seconds),
        ),
    )


def aborted(output_index: int = 0) -> Response:
    """The end of an aborted output."""
    return finished(types_pb2.FINISH_REASON_ABORT, output_index)
