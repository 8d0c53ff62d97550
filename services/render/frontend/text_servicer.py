"""TextService: the text generator as gRPC calls."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from time import monotonic
from typing import Any, TypeAlias

import grpc
from triptych.v1 import render_pb2, render_pb2_grpc

from services.render.frontend.text_generator import TextGenerator

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

# Both requests wrap a render request in this field.
_PREFIX = "request."


class TextServicer(render_pb2_grpc.TextServiceServicer):
    """One generation per call."""

    def __init__(self, generator: TextGenerator) -> None:
        self._generator = generator

    async def Chat(
        self, request: render_pb2.ChatRequest, context: Context
    ) -> AsyncIterator[render_pb2.ChatResponse]:
        async with self._generate(request.request, context) as events:
            async for event in events:
                yield render_pb2.ChatResponse(event=event)

    async def Complete(
        self, request: render_pb2.CompleteRequest, context: Context
    ) -> AsyncIterator[render_pb2.CompleteResponse]:
        async with self._generate(request.request, context) as events:
            async for event in events:
                yield render_pb2.CompleteResponse(event=event)

    def _generate(
        self, request: render_pb2.RenderChatRequest | render_pb2.RenderCompletionRequest, context: Context
    ) -> AbstractAsyncContextManager[AsyncIterator[render_pb2.TextEvent]]:
        remaining = context.time_remaining()
        deadline = None if remaining is None else monotonic() + remaining
        return aclosing(self._generator.generate(request, deadline, _PREFIX))
