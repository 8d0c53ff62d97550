"""TextService: render, generate on the scheduler and derender, in one call."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

import grpc
from triptych.v1 import render_pb2, render_pb2_grpc

from services.render.compute_pool import ComputePool
from services.render.frontend.scheduler_client import SchedulerClient, connection_error, scheduler_lost
from services.render.output.derenderer import Derenderer
from services.render.output.output_text import OutputTextFactory
from services.render.renderer import Renderer
from services.render.servicer import take_request_id
from shared.errors import DETAILS_KEY, Reason, ServiceError

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Rendered: TypeAlias = render_pb2.RenderChatResponse | render_pb2.RenderCompletionResponse
Request = TypeVar("Request", render_pb2.RenderChatRequest, render_pb2.RenderCompletionRequest)

# Both requests wrap a render request in this field.
_PREFIX = "request."


class TextServicer(render_pb2_grpc.TextServiceServicer):
    """One scheduler call per request; its state is the call's."""

    def __init__(
        self,
        renderer: Renderer,
        output_texts: OutputTextFactory,
        pool: ComputePool,
        scheduler: SchedulerClient | None,
    ) -> None:
        """scheduler: None refuses every call."""
        self._renderer = renderer
        self._output_texts = output_texts
        self._pool = pool
        self._scheduler = scheduler

    async def Chat(
        self, request: render_pb2.ChatRequest, context: Context
    ) -> AsyncIterator[render_pb2.ChatResponse]:
        """Answers a conversation."""
        generation = self._generate(self._renderer.render_chat, request.request, context)
        async with aclosing(generation) as events:
            async for event in events:
                yield render_pb2.ChatResponse(event=event)

    async def Complete(
        self, request: render_pb2.CompleteRequest, context: Context
    ) -> AsyncIterator[render_pb2.CompleteResponse]:
        """Goes on from a plain prompt."""
        generation = self._generate(self._renderer.render_completion, request.request, context)
        async with aclosing(generation) as events:
            async for event in events:
                yield render_pb2.CompleteResponse(event=event)

    async def _generate(
        self, render: Callable[[Request, str], Rendered], request: Request, context: Context
    ) -> AsyncGenerator[render_pb2.TextEvent, None]:
        """Renders, generates, derenders. Nothing is sent before the scheduler has admitted the request."""
        arrival = perf_counter()
        if self._scheduler is None:
            raise ServiceError(Reason.NO_SCHEDULER, "this renderer was started without --scheduler HOST:PORT")
        take_request_id(request)
        rendered = await self._pool.run(request.ByteSize(), render, request, _PREFIX)
        render_seconds = perf_counter() - arrival
        text_params = rendered.text_params
        derenderer = await self._pool.run_step(
            text_params.ByteSize(), Derenderer, self._output_texts, text_params, wait_for_timings=True
        )
        call = self._scheduler.generate(rendered.generate_request, context.time_remaining())
        try:
            async for event in call:
                text_events = await self._pool.run_step(derenderer.weight(event), derenderer.push, event)
                for output_index in derenderer.take_stopped():
                    await self._scheduler.abort(derenderer.generation_id, output_index)
                for text_event in text_events:
                    if text_event.HasField("finished"):
                        text_event.finished.render_seconds = render_seconds
                        text_event.finished.total_seconds = perf_counter() - arrival
                    yield text_event
        except grpc.aio.AioRpcError as error:
            await _pass_on(error, context)
        finally:
            call.cancel()
        if not derenderer.is_complete:
            raise scheduler_lost("it ended the call before every output had ended")


async def _pass_on(error: grpc.aio.AioRpcError, context: Context) -> None:
    """Ends the call as the scheduler ended it: code, message and details. Does not return."""
    if (broken := connection_error(error)) is not None:
        raise broken from error
    details = [(key, value) for key, value in error.trailing_metadata() if key == DETAILS_KEY]
    await context.abort(error.code(), error.details() or "", tuple(details))
