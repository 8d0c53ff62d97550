"""The three processes, as `triptych up` starts them, measured from outside."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from urllib.request import urlopen

from rich.console import Console
from triptych.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2

from services.cli.processes import ServiceProcess, check_ready
from services.cli.up import Supervisor, UpConfig, plan
from shared.config import METRICS_PORT_OFFSET
from shared.grpc_client import create_channel
from shared.wire import Address
from tests.bench.workload import DECODE_TOKENS, Speed, prompts

_BASE_PORT = 50951


@dataclass
class Stack:
    """The running services in the order render, scheduler, worker."""

    services: list[ServiceProcess]
    config: UpConfig
    start_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def scheduler(self) -> Address:
        """Where generations run."""
        return self.services[1].address

    def peak_memory_mib(self) -> dict[str, float]:
        """Peak resident memory of each process so far."""
        peaks = {}
        for service in self.services:
            assert service.process is not None
            status = Path(f"/proc/{service.process.pid}/status").read_text()
            kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
            peaks[service.name] = int(kib) / 1024
        return peaks

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


@contextmanager
def running_stack(**flags: str) -> Iterator[Stack]:
    """Starts the services one after the other, each timed from its start to its readiness."""
    config = UpConfig(base_port=_BASE_PORT)
    services = plan(config, {"log_level": "warning", **flags})
    stack = Stack(services, config)
    supervisor = Supervisor(services, config, Console(quiet=True))
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


def measure_stack(stack: Stack, prefill_len: int, batch_sizes: Iterable[int]) -> Speed:
    """The same work as `measure_transformers`, over gRPC."""
    return asyncio.run(_measure(stack, prefill_len, list(batch_sizes)))


async def _measure(stack: Stack, prefill_len: int, batch_sizes: list[int]) -> Speed:
    async with create_channel(stack.scheduler, stack.config) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        await _generate_all(stub, prompts(1, prefill_len, seed=99), 2)
        seconds = min([await _generate_all(stub, prompts(1, prefill_len, seed=seed), 1) for seed in range(2)])
        decode = {}
        for size in batch_sizes:
            # Salts keep the second run from finding the first one's blocks.
            first = await _generate_all(stub, prompts(size, 32, seed=size), 1, salt="first")
            whole = await _generate_all(stub, prompts(size, 32, seed=size), 1 + DECODE_TOKENS, salt="whole")
            decode[size] = size * DECODE_TOKENS / (whole - first)
        return Speed(prefill_len / seconds, decode)


async def _generate_all(
    stub: "scheduler_pb2_grpc.SchedulerServiceAsyncStub",
    batch: list[list[int]],
    num_tokens: int,
    salt: str = "",
) -> float:
    """Seconds until all are done."""

    async def generate(prompt: list[int]) -> None:
        params = types_pb2.SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        request = scheduler_pb2.GenerateRequest(
            prompt_token_ids=prompt, sampling_params=params, cache_salt=salt
        )
        async for _ in stub.Generate(request):
            pass

    started = perf_counter()
    await asyncio.gather(*map(generate, batch))
    return perf_counter() - started
