"""The render process."""

import asyncio
import gc
from functools import partial

from triptych.v1 import render_pb2, render_pb2_grpc, types_pb2

from services.render import metrics
from services.render.compute_pool import ComputePool
from services.render.config import RenderConfig
from services.render.frontend.scheduler_client import SchedulerClient
from services.render.frontend.text_generator import TextGenerator
from services.render.frontend.text_servicer import TextServicer
from services.render.loading import load_renderer
from services.render.output.output_text import OutputTextFactory
from services.render.servicer import RenderServicer
from shared.grpc_client import create_channel
from shared.grpc_server import GrpcServer, end_process
from shared.log import configure_logging, get_logger, log_start
from shared.metrics import serve_metrics

RENDER_SERVICE = render_pb2.DESCRIPTOR.services_by_name["RenderService"].full_name
TEXT_SERVICE = render_pb2.DESCRIPTOR.services_by_name["TextService"].full_name

_log = get_logger()


def run(config: RenderConfig) -> None:
    """Runs until a signal. Raises ConfigError for what the user can mend."""
    configure_logging("render", config.log_level)
    log_start(config)
    asyncio.run(_serve(config))


async def _serve(config: RenderConfig) -> None:
    server = GrpcServer(config, [RENDER_SERVICE, TEXT_SERVICE])
    channel = create_channel(config.scheduler, config) if config.scheduler else None
    scheduler = SchedulerClient(channel, partial(server.set_ready, TEXT_SERVICE)) if channel else None

    def scheduler_info() -> types_pb2.ModelInfo | None:
        return scheduler.model_info if scheduler else None

    renderer, tokenizer, parser, parser_reason, capabilities, warnings = load_renderer(
        config,
        scheduler_info=scheduler_info,
        observe=lambda stage, seconds: metrics.RENDER_STAGE.labels(stage).observe(seconds),
    )
    _log.info("tokenizer", library=tokenizer.name, reason=tokenizer.reason)
    _log.info("parser", parser=parser, reason=parser_reason)
    if capabilities is not None:
        _log.info("chat_template", **capabilities.summary())
    for warning in warnings:
        _log.warning("model_folder", warning=warning)
    metrics_address = serve_metrics(config.metrics_address)
    output_texts = OutputTextFactory(tokenizer)
    pool = ComputePool()
    _bound_collections()
    render_pb2_grpc.add_RenderServiceServicer_to_server(
        RenderServicer(renderer, output_texts, pool), server.server
    )
    render_pb2_grpc.add_TextServiceServicer_to_server(
        TextServicer(TextGenerator(renderer, output_texts, pool, scheduler)), server.server
    )
    address = await server.start()
    await server.set_ready(RENDER_SERVICE, True)
    model_name = renderer.model.name
    _log.info("listening", address=str(address), metrics=str(metrics_address), model=model_name)
    if scheduler is not None:
        scheduler.start()
    await server.run_until_signal()
    if scheduler is not None:
        await scheduler.close()
    if channel is not None:
        await channel.close()
    end_process()


def _bound_collections() -> None:
    """The garbage collector stops all threads while it goes through what there is: in sum for half a second,
    for the objects of 5 MB of JSON. What was loaded so far it never needs to look at."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
