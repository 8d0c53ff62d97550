"""Render's two services over real gRPC, in this process."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from triptych.v1 import render_pb2_grpc, scheduler_pb2_grpc

from services.render.compute_pool import ComputePool
from services.render.frontend.scheduler_client import SERVICE_NAME, SchedulerClient
from services.render.frontend.text_generator import TextGenerator
from services.render.frontend.text_servicer import TextServicer
from services.render.model_folder import load_model_folder
from services.render.output.formats import PARSERS, ParserName, choose_parser
from services.render.output.output_text import OutputTextFactory
from services.render.renderer import Renderer
from services.render.servicer import RenderServicer
from services.render.template.check import load_chat_template
from services.render.tokenizer.tokenizer import Tokenizer
from shared.interceptors import DrainState, ServerInterceptor
from tests.support.fake_scheduler import FakeScheduler, Script
from tests.support.render_models import DEMO_MODEL, tokenizer_of


@dataclass
class Rig:
    """Stubs of both services, what runs behind them, and the parts that tests check results with."""

    render: Any
    text: Any
    tokenizer: Tokenizer
    scheduler: FakeScheduler | None
    scheduler_client: SchedulerClient | None
    scheduler_server: grpc.aio.Server | None


MakeRig = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def make_rig() -> AsyncIterator[MakeRig]:
    """make_rig(script) starts render before a fake scheduler; make_rig(None), before none."""
    async with AsyncExitStack() as stack:

        async def make(script: Script | None, folder: Path = DEMO_MODEL) -> Rig:
            scheduler, client, scheduler_server = None, None, None
            if script is not None:
                scheduler = FakeScheduler(script)
                scheduler_server = grpc.aio.server(interceptors=[ServerInterceptor(DrainState())])
                scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, scheduler_server)
                channel = await stack.enter_async_context(_serve(scheduler_server, with_health=True))
                client = SchedulerClient(channel)
                client.start()
                stack.push_async_callback(client.close)
            server, tokenizer = _render_server(folder, client)
            channel = await stack.enter_async_context(_serve(server))
            return Rig(
                render=render_pb2_grpc.RenderServiceStub(channel),
                text=render_pb2_grpc.TextServiceStub(channel),
                tokenizer=tokenizer,
                scheduler=scheduler,
                scheduler_client=client,
                scheduler_server=scheduler_server,
            )

        yield make


def _render_server(folder: Path, client: SchedulerClient | None) -> tuple[grpc.aio.Server, Tokenizer]:
    model = load_model_folder(folder)
    tokenizer = tokenizer_of(model.tokenizer_file.resolve())
    renderer = Renderer(
        model,
        tokenizer,
        load_chat_template(model, tokenizer.control_tokens),
        parser=PARSERS[choose_parser(ParserName.AUTO, model.chat_templates.values())[0]],
        scheduler_info=lambda: client.model_info if client else None,
    )
    output_texts, pool = OutputTextFactory(tokenizer), ComputePool()
    server = grpc.aio.server(interceptors=[ServerInterceptor(DrainState())])
    render_pb2_grpc.add_RenderServiceServicer_to_server(RenderServicer(renderer, output_texts, pool), server)
    text_servicer = TextServicer(TextGenerator(renderer, output_texts, pool, client))
    render_pb2_grpc.add_TextServiceServicer_to_server(text_servicer, server)
    return server, tokenizer


@asynccontextmanager
async def _serve(server: grpc.aio.Server, with_health: bool = False) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to the server, which runs meanwhile."""
    if with_health:
        servicer = health.aio.HealthServicer()
        await servicer.set(SERVICE_NAME, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)
