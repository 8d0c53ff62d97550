"""The worker process: listens, loads the model on the model thread, then becomes ready."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter

from triptych.v1 import worker_pb2, worker_pb2_grpc

from services.worker import device, metrics
from services.worker.backends.reference.backend import ReferenceBackend
from services.worker.checkpoint.loader import LoadedModel, load_checkpoint
from services.worker.checkpoint.progress import load_progress
from services.worker.config import WorkerConfig
from services.worker.model.configuration import CheckpointError, ModelConfig
from services.worker.model.kv_cache import num_blocks_for
from services.worker.self_test import SelfTestError, check_device
from services.worker.servicer import WorkerServicer
from services.worker.session.record import RecordError, SessionRecord
from services.worker.step.model_runner import ModelRunner
from shared.config import ConfigError
from shared.grpc_server import GrpcServer, end_process
from shared.log import configure_logging, get_logger, log_start
from shared.metrics import serve_metrics

SERVICE_NAME = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
_WATCHDOG_SECONDS = 1.0

_log = get_logger()


def run(config: WorkerConfig) -> None:
    """Runs until a signal. Raises ConfigError for what the user can fix."""
    configure_logging("worker", config.log_level)
    log_start(config)
    asyncio.run(_serve(config))


async def _serve(config: WorkerConfig) -> None:
    try:
        model_config = ModelConfig.from_folder(config.model)
    except CheckpointError as error:
        raise ConfigError(f"--model: {error}") from None
    try:
        record = None if config.record is None else SessionRecord(config.record)
    except RecordError as error:
        raise ConfigError(f"--record: {error}") from None
    metrics_address = serve_metrics(config.metrics_address)
    model_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
    servicer = WorkerServicer(
        config.served_model_name or config.model.resolve().name, model_thread, config.allowed_peers, record
    )
    server = GrpcServer(config, [SERVICE_NAME])
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server.server)
    address = await server.start()
    _log.info("listening", address=str(address), metrics=str(metrics_address))
    try:
        await _load_and_serve(config, model_config, server, servicer, model_thread)
    except BaseException:
        await server.close()
        raise
    # Past the drain limit a pass may still be running on its thread, which would keep the process alive.
    end_process()


async def _load_and_serve(
    config: WorkerConfig,
    model_config: ModelConfig,
    server: GrpcServer,
    servicer: WorkerServicer,
    model_thread: ThreadPoolExecutor,
) -> None:
    serving = asyncio.create_task(server.run_until_signal(on_drain=servicer.is_draining.set))
    load = partial(_load, config, model_config, servicer.is_draining.is_set)
    try:
        runner = await asyncio.get_running_loop().run_in_executor(model_thread, load)
    except CheckpointError as error:
        raise ConfigError(f"--model: {error}") from None
    except _LoadStoppedError:
        await serving
        return
    servicer.model_loaded(runner)
    watchdog = asyncio.create_task(_watch_passes(server, servicer, config.step_overdue_seconds))
    await serving
    watchdog.cancel()


class _LoadStoppedError(Exception):
    """SIGTERM came while the model was being loaded."""


def _load(config: WorkerConfig, model_config: ModelConfig, is_stopping: Callable[[], bool]) -> ModelRunner:
    """On the model thread, which also runs every pass: torch's OpenMP threads belong to their caller."""
    started = perf_counter()
    num_threads = device.set_threads(config.threads)
    backend = ReferenceBackend()
    try:
        where = device.choose_device(config.device)
        dtype, why = device.choose_dtype(config.dtype, where, model_config)
        check_device(where, dtype, backend)
    except (CheckpointError, SelfTestError) as error:
        raise ConfigError(f"--device: {error}") from None
    with load_progress() as show:

        def progress(num_read: int, num_tensors: int) -> None:
            if is_stopping():
                raise _LoadStoppedError
            show(num_read, num_tensors)

        loaded = load_checkpoint(config.model, dtype=dtype, device=where, backend=backend, progress=progress)
    runner = _make_runner(config, loaded)
    info = runner.model_info()
    weights_bytes = sum(weight.nbytes for weight in loaded.model.weights().values())
    metrics.set_limits(info, weights_bytes)
    seconds = perf_counter() - started
    metrics.MODEL_LOAD.set(seconds)
    _log.info(
        "model_loaded",
        model=str(config.model),
        seconds=round(seconds, 3),
        device=where.type,
        dtype=str(dtype),
        dtype_why=why,
        threads=num_threads,
        weights_bytes=weights_bytes,
        num_blocks=info.num_blocks,
        max_model_len=info.max_model_len,
    )
    return runner


def _make_runner(config: WorkerConfig, loaded: LoadedModel) -> ModelRunner:
    num_blocks = config.num_blocks or num_blocks_for(
        config.cache_memory, loaded.config, config.block_size, loaded.model.dtype
    )
    if num_blocks < 2:
        raise ConfigError(f"--kv-cache-memory is {config.cache_memory} bytes, which hold fewer than 2 blocks")
    try:
        return ModelRunner(
            loaded,
            num_blocks=num_blocks,
            block_size=config.block_size,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len or loaded.config.max_position_embeddings,
            poison_cache=config.poison_cache,
        )
    except (MemoryError, OSError, RuntimeError) as error:  # the first two from mmap, the last from torch
        raise ConfigError(f"not enough memory for a cache of {num_blocks} blocks: {error}") from None


async def _watch_passes(server: GrpcServer, servicer: WorkerServicer, overdue_seconds: float) -> None:
    """NOT_SERVING while the running pass is overdue."""
    was_ready: bool | None = None
    while True:
        started = servicer.pass_started
        is_ready = started is None or perf_counter() - started < overdue_seconds
        if is_ready is not was_ready:
            await server.set_ready(SERVICE_NAME, is_ready)
            was_ready = is_ready
        await asyncio.sleep(_WATCHDOG_SECONDS)
