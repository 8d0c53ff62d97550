"""Text in, text out: renders a request, generates on the scheduler and derenders. Knows no transport."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import perf_counter

from triptych.v1 import render_pb2

from services.render.compute_pool import ComputePool
from services.render.frontend.scheduler_client import SchedulerClient, scheduler_lost
from services.render.output.derenderer import Derenderer
from services.render.output.output_text import OutputTextFactory
from services.render.renderer import Renderer
from shared.errors import Reason, ServiceError
from shared.request_context import take_request_id


class TextGenerator:
    """What every front door calls. Holds no state of a request: that is its generator's."""

    def __init__(
        self,
        renderer: Renderer,
        output_texts: OutputTextFactory,
        pool: ComputePool,
        scheduler: SchedulerClient | None,
    ) -> None:
        """scheduler: None refuses every request."""
        self._renderer = renderer
        self._output_texts = output_texts
        self._pool = pool
        self._scheduler = scheduler

    async def generate(
        self,
        request: render_pb2.RenderChatRequest | render_pb2.RenderCompletionRequest,
        deadline: float | None = None,
        prefix: str = "",
    ) -> AsyncGenerator[render_pb2.TextEvent, None]:
        """The request's events; ends after the last output's `finished`. Closing the generator (see
        contextlib.aclosing) frees everything that the request holds.

        deadline: on time.monotonic; None: none. prefix: of field paths in errors. The first event comes after
        the scheduler has admitted the request. Raises ServiceError: NO_SCHEDULER, those of RenderService, and
        those of SchedulerService.Generate as the scheduler sent them.
        """
        arrival = perf_counter()
        if self._scheduler is None:
            raise ServiceError(Reason.NO_SCHEDULER, "this renderer was started without --scheduler HOST:PORT")
        take_request_id(request)
        rendered = await self._pool.run(
            request.ByteSize(), self._renderer.render, request, prefix, deadline=deadline
        )
        render_seconds = perf_counter() - arrival
        text_params = rendered.text_params
        derenderer = await self._pool.run_step(
            text_params.ByteSize(), Derenderer, self._output_texts, text_params, wait_for_timings=True
        )
        async with aclosing(self._scheduler.generate(rendered.generate_request, deadline)) as events:
            async for event in events:
                text_events = await self._pool.run_step(derenderer.weight(event), derenderer.push, event)
                for output_index in derenderer.take_stopped():
                    await self._scheduler.abort(derenderer.generation_id, output_index)
                for text_event in text_events:
                    if text_event.HasField("finished"):
                        text_event.finished.render_seconds = render_seconds
                        text_event.finished.total_seconds = perf_counter() - arrival
                    yield text_event
        if not derenderer.is_complete:
            raise scheduler_lost("it ended the call before every output had ended")
