"""Where the model runs, in which type, on how many threads: "auto" resolved before anything is built."""

import time

import torch

from services.worker.model.config import CheckpointError, ModelConfig
from shared.cores import num_usable_cores

_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# The matmul that decides: an MLP's shape in small, a few milliseconds in either type.
_PROBE_ROWS, _PROBE_SIZE, _PROBE_RUNS = 256, 1024, 5


def choose_device(name: str) -> torch.device:
    """Resolves "auto", "cpu", "mps" or "cuda". CheckpointError if that is not there."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(device for device, is_available in available.items() if is_available))
    if not available.get(name, False):
        allowed = ", ".join(device for device, is_available in available.items() if is_available)
        raise CheckpointError(f"device is {name}; allowed on this machine: auto, {allowed}")
    return torch.device(name)


def choose_dtype(name: str, device: torch.device, config: ModelConfig) -> tuple[torch.dtype, str]:
    """Resolves "auto", "float32" or "bfloat16"; returns the weights' type, and why, for the log.

    A checkpoint in fp32 or fp16 has bits that bfloat16 lacks, so "auto" keeps them in float32. A bfloat16 one
    stays as it is on a GPU; a CPU may be many times slower at it, so that is measured.
    """
    if name != "auto":
        return _TYPES[name], "asked for"
    if config.dtype != "bfloat16":
        return torch.float32, f"the checkpoint is in {config.dtype}"
    if device.type != "cpu":
        return torch.bfloat16, "the checkpoint is in bfloat16"
    seconds = {dtype: _matmul_seconds(dtype) for dtype in (torch.float32, torch.bfloat16)}
    ratio = seconds[torch.bfloat16] / seconds[torch.float32]
    best = torch.bfloat16 if ratio <= 1.0 else torch.float32
    return best, f"a bfloat16 matmul takes {ratio:.1f} times as long as a float32 one on this processor"


def set_threads(num_threads: int | None) -> int:
    """Sets torch's threads to so many, or to the cores that this process may use; returns the number."""
    num_threads = num_threads or num_usable_cores()
    torch.set_num_threads(num_threads)
    return num_threads


def _matmul_seconds(dtype: torch.dtype) -> float:
    """The fastest of a few runs: the others were disturbed."""
    x = torch.ones(_PROBE_ROWS, _PROBE_SIZE, dtype=dtype)
    weight = torch.ones(_PROBE_SIZE, _PROBE_SIZE, dtype=dtype)
    seconds = []
    for _ in range(_PROBE_RUNS):
        started = time.perf_counter()
        torch.nn.functional.linear(x, weight)
        seconds.append(time.perf_counter() - started)
    return min(seconds)
