"""Where the model runs, in which type, on how many threads: "auto" resolved before anything is built."""

import torch

from services.worker.model.configuration import CheckpointError, ModelConfig
from shared.cores import num_usable_cores

_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_device(name: str) -> torch.device:
    """Resolves "auto", "cpu", "mps" or "cuda". CheckpointError if this machine has no such device."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(device for device, is_available in available.items() if is_available))
    if not available.get(name, False):
        allowed = ", ".join(device for device, is_available in available.items() if is_available)
        raise CheckpointError(f"device is {name}; allowed on this machine: auto, {allowed}")
    return torch.device(name)


def choose_dtype(name: str, device: torch.device, config: ModelConfig) -> tuple[torch.dtype, str]:
    """Resolves "auto", "float32" or "bfloat16"; returns the weights' dtype, and the reason, for the log.

    A checkpoint in fp32 or fp16 has bits that bfloat16 lacks, so "auto" keeps them in float32. A bfloat16 one
    stays in bfloat16 on a GPU, and on a CPU with instructions for bfloat16 matrices (AMX); on others large
    matmuls may take many times as long as in float32. The processor's features decide, not a measurement:
    workers on equal machines choose alike, however busy these are, so a request may migrate between them.
    """
    if name != "auto":
        return _TYPES[name], "set by --dtype"
    if config.dtype != "bfloat16":
        return torch.float32, f"the checkpoint is in {config.dtype}"
    if device.type != "cpu":
        return torch.bfloat16, "the checkpoint is in bfloat16"
    if torch.cpu.get_capabilities().get("amx_bf16", False):
        return torch.bfloat16, "the checkpoint is in bfloat16, and this processor has AMX"
    why = "this processor has no AMX, without which large matrices may be slower; bfloat16 halves the memory"
    return torch.float32, why


def set_threads(num_threads: int | None) -> int:
    """Sets the number of torch's threads, by default the cores that this process may use; returns it."""
    num_threads = num_threads or num_usable_cores()
    torch.set_num_threads(num_threads)
    return num_threads
