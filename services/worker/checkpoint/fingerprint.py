"""ModelInfo.model_fingerprint: two workers that agree on it compute the same model."""

import hashlib
import json
from dataclasses import asdict

import numpy as np
import torch
from torch import Tensor

from services.worker.model.configuration import ModelConfig

# Elements of each tensor that are hashed. Hashing all of them would slow loading down.
_NUM_SAMPLES = 256


class ModelFingerprint:
    """Collects a model's identity while its tensors are loaded, in any order."""

    def __init__(self, config: ModelConfig, *, weight_dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
        self._header = {
            "config": asdict(config),
            "weight_dtype": str(weight_dtype),
            "cache_dtype": str(cache_dtype),
            "quantization": "fp8" if config.weight_block_size else "",
        }
        self._tensors: dict[str, str] = {}

    def add(self, name: str, tensor: Tensor) -> None:
        """Adds a tensor as the checkpoint has it (on the CPU, before any conversion)."""
        elements = tensor.flatten().view(torch.uint8).unflatten(0, (-1, tensor.dtype.itemsize))
        # Evenly spread, rounded down; the first and the last element are always in.
        index = np.linspace(0, len(elements) - 1, num=min(_NUM_SAMPLES, len(elements))).astype(np.int64)
        content = elements[torch.from_numpy(index)].numpy().tobytes()
        described = f"{list(tensor.shape)} {tensor.dtype} {hashlib.sha256(content).hexdigest()}"
        self._tensors[name] = described

    def hexdigest(self) -> str:
        """SHA-256 over everything added, as 64 hexadecimal digits."""
        canonical = json.dumps({**self._header, "tensors": self._tensors}, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()
