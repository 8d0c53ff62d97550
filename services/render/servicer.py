"""RenderService: text to tokens and back, as calls."""

from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
from triptych.v1 import render_pb2, render_pb2_grpc

from services.render.compute_pool import ComputePool
from services.render.output.derenderer import Derenderer
from services.render.output.output_text import OutputTextFactory
from services.render.output.text_params import validate_text_params
from services.render.renderer import Renderer
from shared.errors import Reason, ServiceError, out_of_range
from shared.request_context import take_request_id

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class RenderServicer(render_pb2_grpc.RenderServiceServicer):
    """Hands each request to the pool; holds no state of its own."""

    def __init__(self, renderer: Renderer, output_texts: OutputTextFactory, pool: ComputePool) -> None:
        self._renderer = renderer
        self._output_texts = output_texts
        self._pool = pool

    async def ListModels(
        self, request: render_pb2.ListModelsRequest, context: Context
    ) -> render_pb2.ListModelsResponse:
        """The one model that this process serves."""
        model = self._renderer.model
        entry = render_pb2.RenderModel(
            model=model.name,
            tokenizer_fingerprint=self._renderer.tokenizer_fingerprint,
            max_model_len=self._renderer.max_model_len,
            supports_chat=bool(model.chat_templates),
        )
        return render_pb2.ListModelsResponse(models=[entry])

    async def RenderChat(
        self, request: render_pb2.RenderChatRequest, context: Context
    ) -> render_pb2.RenderChatResponse:
        """A conversation becomes a GenerateRequest."""
        take_request_id(request)
        return await self._pool.run(request.ByteSize(), self._renderer.render_chat, request)

    async def RenderCompletion(
        self, request: render_pb2.RenderCompletionRequest, context: Context
    ) -> render_pb2.RenderCompletionResponse:
        """A plain prompt becomes a GenerateRequest."""
        take_request_id(request)
        return await self._pool.run(request.ByteSize(), self._renderer.render_completion, request)

    async def Tokenize(
        self, request: render_pb2.TokenizeRequest, context: Context
    ) -> render_pb2.TokenizeResponse:
        """Text becomes token ids."""
        return await self._pool.run(request.ByteSize(), self._renderer.tokenize, request)

    async def Detokenize(
        self, request: render_pb2.DetokenizeRequest, context: Context
    ) -> render_pb2.DetokenizeResponse:
        """Token ids become text."""
        return await self._pool.run(request.ByteSize(), self._renderer.detokenize, request)

    async def Derender(
        self, request_iterator: AsyncIterator[render_pb2.DerenderRequest], context: Context
    ) -> AsyncIterator[render_pb2.DerenderResponse]:
        """Events become text, in step with the caller."""
        derenderer: Derenderer | None = None
        async for request in request_iterator:
            kind = request.WhichOneof("message")
            if derenderer is None and kind == "params":
                derenderer = await self._open(request.params)
            elif derenderer is not None and kind == "event":
                events = await self._pool.run_step(
                    derenderer.weight(request.event), derenderer.push, request.event
                )
                for event in events:
                    yield render_pb2.DerenderResponse(event=event)
            else:
                raise out_of_range("message", kind, "`params` first, then `event` alone")
        if derenderer is None or not derenderer.is_complete:
            message = "the stream was closed before every output's end"
            raise ServiceError(Reason.STREAM_INCOMPLETE, message, field="message")

    async def _open(self, params: render_pb2.DerenderParams) -> Derenderer:
        self._renderer.check_model(params.model, "params.model")
        validate_text_params(params.text_params, "params.text_params")
        text_params = params.text_params
        return await self._pool.run_step(text_params.ByteSize(), Derenderer, self._output_texts, text_params)
