"""The three processes, as `triptych up` starts them, measured from outside."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from urllib.request import urlopen

from triptych.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2

from services.cli.processes import ServiceProcess, check_ready
from services.cli.up import Supervisor, UpConfig, plan
from shared.config import METRICS_PORT_OFFSET
from shared.grpc_client import create_channel
from shared.wire import Address
from tests.bench.workload import (
    BATCH_PROMPT_LEN,
    BATCH_SIZES,
    CONTEXTS,
    DECODE_TOKENS,
    TEMPERATURE,
    TOP_P,
    Speed,
    prompt_len,
    prompts,
)

_BASE_PORT = 50951


@dataclass
class Stack:
    """The running services in the order render, scheduler, worker."""

    services: list[ServiceProcess]
    config: UpConfig
    start_seconds: dict[str, float] = field(default_factory=dict)
    # What the worker's peak grew by with each context, less the rows that it keeps.
    scratch_mib: dict[int, float] = field(default_factory=dict)
    _worker_peak: float = 0.0

    @property
    def scheduler(self) -> Address:
        """Where generations run."""
        return self.services[1].address

    def peak_memory_mib(self) -> dict[str, float]:
        """Peak resident memory of each process so far."""
        peaks = {service.name: _memory_mib(service, "VmHWM") for service in self.services}
        peaks["worker"] = max(peaks["worker"], self._worker_peak)
        return peaks

    @contextmanager
    def watched_worker(self) -> Iterator[Callable[[], float]]:
        """Gives what tells how far the worker's memory has risen since at its peak, in MiB."""
        worker = self.services[2]
        self._worker_peak = max(self._worker_peak, _memory_mib(worker, "VmHWM"))
        before = _memory_mib(worker, "VmRSS")
        assert worker.process is not None
        # From now on VmHWM is the peak since.
        Path(f"/proc/{worker.process.pid}/clear_refs").write_text("5")
        yield lambda: _memory_mib(worker, "VmHWM") - before

    def histogram(self, service_index: int, metric: str) -> tuple[float, float]:
        """(sum, count) of one of a service's metrics."""
        address = self.services[service_index].address
        url = f"http://{address.with_port(address.port + METRICS_PORT_OFFSET)}/metrics"
        with urlopen(url) as response:
            lines = response.read().decode().splitlines()
        totals = {}
        for suffix in ("_sum", "_count"):
            totals[suffix] = sum(
                float(line.split()[-1]) for line in lines if line.startswith(metric + suffix)
            )
        return totals["_sum"], totals["_count"]


def _memory_mib(service: ServiceProcess, name: str) -> float:
    assert service.process is not None
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(name))) / 1024


@contextmanager
def running_stack(**flags: str) -> Iterator[Stack]:
    """Starts the services one after the other, each timed from its start to its readiness."""
    config = UpConfig(base_port=_BASE_PORT, verbose=True)
    services = plan(config, {"log_level": "warning", **flags})
    stack = Stack(services, config)
    supervisor = Supervisor(services, config, say=lambda _text: None)
    try:
        for service in reversed(services):
            started = perf_counter()
            service.start()
            while not check_ready(service, config):
                if service.poll() is not None:
                    raise RuntimeError(f"{service.name} ended with exit code {service.poll()}")
            stack.start_seconds[service.name] = perf_counter() - started
        yield stack
    finally:
        supervisor.stop()


def measure_stack(stack: Stack) -> Speed:
    """The same work as `measure_transformers`, over gRPC."""
    return asyncio.run(_measure(stack))


async def _measure(stack: Stack) -> Speed:
    speed = Speed()
    async with create_channel(stack.scheduler, stack.config) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        info = (await stub.GetModelInfo(scheduler_pb2.SchedulerServiceGetModelInfoRequest())).model_info
        mib_per_token = info.bytes_per_block / info.block_size / 2**20
        await _generate(stub, prompts(1, BATCH_PROMPT_LEN, seed=99), 2)
        for context in CONTEXTS:
            prompt = prompts(1, prompt_len(context), seed=context)
            with stack.watched_worker() as growth_mib:
                prefill, decode = await _generate(stub, prompt, DECODE_TOKENS)
                stack.scratch_mib[context] = growth_mib() - context * mib_per_token
            speed.prefill[context] = prompt_len(context) / prefill
            speed.decode_at[context] = DECODE_TOKENS / decode
        for size in BATCH_SIZES:
            batch = prompts(size, BATCH_PROMPT_LEN, seed=size)
            for temperature, speeds in ((0.0, speed.greedy), (TEMPERATURE, speed.sampled)):
                # Salts keep a run from finding another one's blocks.
                _, decode = await _generate(stub, batch, DECODE_TOKENS, temperature, salt=str(temperature))
                speeds[size] = size * DECODE_TOKENS / decode
    return speed


async def _generate(
    stub: "scheduler_pb2_grpc.SchedulerServiceAsyncStub",
    batch: list[list[int]],
    num_tokens: int,
    temperature: float = 0.0,
    salt: str = "",
) -> tuple[float, float]:
    """Seconds until all have their first token, and from there until all have so many more."""
    started = perf_counter()
    first: list[float] = []

    async def generate(seed: int, prompt: list[int]) -> None:
        params = types_pb2.SamplingParams(
            temperature=temperature, top_p=TOP_P, seed=seed, max_tokens=1 + num_tokens, ignore_eos=True
        )
        request = scheduler_pb2.GenerateRequest(
            prompt_token_ids=prompt, sampling_params=params, cache_salt=salt
        )
        is_first = True
        async for response in stub.Generate(request):
            if is_first and response.HasField("chunk"):
                first.append(perf_counter())
                is_first = False

    await asyncio.gather(*(generate(seed, prompt) for seed, prompt in enumerate(batch)))
    return max(first) - started, perf_counter() - max(first)
