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
from tests.bench.workload import BATCH_SIZES, CONTEXTS, Speed

# transformers' bfloat16 is slow where the processor has no instructions for it: no long prompts then.
PEER_CONTEXTS = {"float32": CONTEXTS, "bfloat16": CONTEXTS[:1]}
_FOLDER = Path(gettempdir()) / "triptych-bench-model"


def main(
    dtype: Annotated[list[str] | None, typer.Option(help="float32, bfloat16; both if not given.")] = None,
    folder: Annotated[Path, typer.Option(help="Where the checkpoint is kept.")] = _FOLDER,
) -> None:
    """Prints Markdown tables for tests/bench/LOG.md."""
    num_parameters = write_checkpoint(folder)
    print(f"machine: {_machine()}")
    print(f"model: {num_parameters / 1e6:.0f} M parameters, random, DeepSeek-V3's architecture\n")
    speeds: list[tuple[str, str, Speed]] = []
    stacks: list[tuple[str, Stack, float, dict[str, float]]] = []
    for name in dtype or ["float32", "bfloat16"]:
        speeds.append(("transformers", name, measure_transformers(folder, name, PEER_CONTEXTS[name])))
        with running_stack(model=str(folder), dtype=name) as stack:
            speeds.append(("triptych", name, measure_stack(stack)))
            stacks.append((name, stack, _overhead(stack), stack.peak_memory_mib()))
    _print_speeds(speeds)
    _print_stacks(stacks)


def _print_speeds(speeds: list[tuple[str, str, Speed]]) -> None:
    """Tokens per second: by context, then by the number of sequences that decode together."""
    contexts = [f"{kind} at {context:,}" for kind in ("prefill", "decode") for context in CONTEXTS]
    _print_header("engine", "weights", *contexts)
    for engine, name, speed in speeds:
        measured = (
            values.get(context) for values in (speed.prefill, speed.decode_at) for context in CONTEXTS
        )
        _print_row(engine, name, *measured)
    batches = [f"{kind} B={size}" for kind in ("greedy", "sampled") for size in BATCH_SIZES]
    _print_header("engine", "weights", *batches)
    for engine, name, speed in speeds:
        _print_row(
            engine, name, *(values[size] for values in (speed.greedy, speed.sampled) for size in BATCH_SIZES)
        )


def _print_stacks(stacks: list[tuple[str, Stack, float, dict[str, float]]]) -> None:
    """The worker's scratch memory by context, and what each process took."""
    _print_header("weights", *(f"scratch MiB at {context:,}" for context in CONTEXTS))
    for name, stack, _, _ in stacks:
        _print_row(name, *(stack.scratch_mib[context] for context in CONTEXTS))
    _print_header("weights", "step overhead, mean ms", "process", "start s", "peak MiB")
    for name, stack, overhead_ms, memory in stacks:
        for service, peak in memory.items():
            start_seconds = stack.start_seconds[service]
            _print_row(name, f"{overhead_ms:.2f}", service, f"{start_seconds:.2f}", f"{peak:.0f}")


def _print_header(*names: str) -> None:
    print(f"\n| {' | '.join(names)} |\n|{' --- |' * len(names)}")


def _print_row(*cells: str | float | None) -> None:
    """Numbers with three digits; nothing where nothing was measured."""
    texts = (cell if isinstance(cell, str) else "" if cell is None else f"{cell:.3g}" for cell in cells)
    print(f"| {' | '.join(texts)} |", flush=True)


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
