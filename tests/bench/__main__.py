"""`make bench`: our speed through three processes against transformers in one run; memory and start time.

Run it alone on the machine: what else runs is measured too.
"""

import os
import platform
from pathlib import Path
from tempfile import gettempdir
from typing import Annotated

import torch
import transformers
import typer

from tests.bench.checkpoint import write_checkpoint
from tests.bench.peer import measure_transformers
from tests.bench.stack import Stack, measure_stack, running_stack
from tests.bench.workload import Speed

PREFILL_LEN = 512
BATCH_SIZES = (1, 4, 16)
_FOLDER = Path(gettempdir()) / "triptych-bench-model"


def main(
    dtype: Annotated[list[str] | None, typer.Option(help="float32, bfloat16; both if not given.")] = None,
    folder: Annotated[Path, typer.Option(help="Where the checkpoint is kept.")] = _FOLDER,
) -> None:
    """Prints Markdown tables for tests/bench/LOG.md."""
    num_parameters = write_checkpoint(folder)
    print(f"machine: {_machine()}")
    print(f"model: {num_parameters / 1e6:.0f} M parameters, random, DeepSeek-V3's architecture\n")
    print(
        "| engine | weights | prefill tok/s | "
        + " | ".join(f"decode B={size}" for size in BATCH_SIZES)
        + " |"
    )
    print("| --- | --- | --- |" + " --- |" * len(BATCH_SIZES))
    reports = []
    for name in dtype or ["float32", "bfloat16"]:
        _print_row("transformers", name, measure_transformers(folder, name, PREFILL_LEN, BATCH_SIZES))
        with running_stack(model=str(folder), dtype=name) as stack:
            _print_row("triptych", name, measure_stack(stack, PREFILL_LEN, BATCH_SIZES))
            reports.append((name, _overhead(stack), stack.start_seconds, stack.peak_memory_mib()))
    print("\n| weights | step overhead, mean ms | process | start s | peak MiB |")
    print("| --- | --- | --- | --- | --- |")
    for name, overhead_ms, start_seconds, memory in reports:
        for service, peak in memory.items():
            print(f"| {name} | {overhead_ms:.2f} | {service} | {start_seconds[service]:.2f} | {peak:.0f} |")


def _print_row(engine: str, dtype: str, speed: Speed) -> None:
    decode = " | ".join(f"{speed.decode[size]:.1f}" for size in BATCH_SIZES)
    print(f"| {engine} | {dtype} | {speed.prefill:.0f} | {decode} |", flush=True)


def _overhead(stack: Stack) -> float:
    """A step's wall time at the scheduler less the worker's own time: planning's share is not in it."""
    total, count = stack.histogram(1, "triptych_step_overhead_seconds")
    return total / count * 1000


def _machine() -> str:
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {cpu}; torch {torch.__version__}, transformers {transformers.__version__}"


if __name__ == "__main__":
    typer.run(main)
