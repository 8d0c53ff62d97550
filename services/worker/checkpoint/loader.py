"""Loads a checkpoint folder: safetensors, one file or shards, tensor by tensor into the model's own memory.

Peak memory is the model plus one tensor (files are mapped, not read). Strict: a tensor that is missing,
unexpected or of another shape is an error that names it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.worker.checkpoint.files import files_of, open_tensors
from services.worker.checkpoint.fingerprint import ModelFingerprint
from services.worker.checkpoint.fp8 import SCALE_SUFFIX, dequantise
from services.worker.model.backend import Backend
from services.worker.model.configuration import CheckpointError, ModelConfig
from services.worker.model.deepseek import DeepseekModel
from services.worker.model.layers import Storage, Weights
from shared.tokenizer_files import tokenizer_fingerprint

_LOADABLE = (torch.bfloat16, torch.float16, torch.float32)
# Written by old versions of transformers; computed from the configuration, not learned.
_COMPUTED = re.compile(r"(^|\.)rotary_emb\.inv_freq$")
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")
# Tensors that one error names.
_MAX_NAMED = 5


@dataclass(frozen=True)
class LoadedModel:
    model: DeepseekModel
    config: ModelConfig
    # As in ModelInfo.
    model_fingerprint: str
    tokenizer_fingerprint: str


def load_checkpoint(
    folder: Path,
    *,
    dtype: torch.dtype,
    device: torch.device,
    backend: Backend[Any],
    progress: Callable[[int, int], None] | None = None,
) -> LoadedModel:
    """CheckpointError if the folder cannot be served. `progress` gets (tensors read, their number)."""
    config = ModelConfig.from_folder(folder)
    tokenizer = tokenizer_fingerprint(folder)
    files = {
        path: [name for name in names if not _is_skipped(name, config)]
        for path, names in files_of(folder).items()
    }
    model = DeepseekModel(config, backend, Storage(dtype, device))
    destinations = model.weights()
    _refuse_unmatched(folder, files, destinations, config)
    fingerprint = ModelFingerprint(config, weight_dtype=dtype, cache_dtype=dtype)
    for num_read, (name, tensor) in enumerate(_weights(files, config, fingerprint), start=1):
        _fill(name, destinations[name], tensor)
        if progress is not None:
            progress(num_read, len(destinations))
    return LoadedModel(model, config, fingerprint.hexdigest(), tokenizer)


def _is_skipped(name: str, config: ModelConfig) -> bool:
    """Whether the pass does not use this tensor of the checkpoint."""
    layer = _LAYER.match(name)
    # Layers past the last are for multi-token prediction.
    is_extra_layer = layer is not None and int(layer[1]) >= config.num_hidden_layers
    is_tied_copy = config.tie_word_embeddings and name == "lm_head.weight"
    return is_extra_layer or is_tied_copy or _COMPUTED.search(name) is not None


def _refuse_unmatched(
    folder: Path, files: dict[Path, list[str]], expected: Weights, config: ModelConfig
) -> None:
    found = {name for names in files.values() for name in names}
    if config.weight_block_size:
        found -= {f"{name}{SCALE_SUFFIX}" for name in expected}
    for problem, names in (("lacks", expected.keys() - found), ("has unexpected", found - expected.keys())):
        if names:
            named = ", ".join(sorted(names)[:_MAX_NAMED])
            more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            raise CheckpointError(f"the checkpoint in {folder} {problem} tensors: {named}{more}")


def _weights(
    files: dict[Path, list[str]], config: ModelConfig, fingerprint: ModelFingerprint
) -> Iterator[tuple[str, Tensor]]:
    """Every weight once, dequantised if it is in FP8. Weights and scales enter the fingerprint."""
    # A weight's scale may be in another shard. Scales are small, and a copy keeps no file mapped.
    scales = {name: scale.clone() for name, scale in _tensors(files, are_scales=True)}
    for name, scale in scales.items():
        fingerprint.add(name, scale)
    for name, tensor in _tensors(files, are_scales=False):
        fingerprint.add(name, tensor)
        yield name, dequantise(name, tensor, scales.get(f"{name}{SCALE_SUFFIX}"), config.weight_block_size)


def _tensors(files: dict[Path, list[str]], *, are_scales: bool) -> Iterator[tuple[str, Tensor]]:
    for path, names in files.items():
        with open_tensors(path) as file:
            for name in names:
                if name.endswith(SCALE_SUFFIX) == are_scales:
                    yield name, file.get_tensor(name)


def _fill(name: str, destination: Tensor, tensor: Tensor) -> None:
    """Copies, converting to the destination's dtype: the model's, or fp32 for the router."""
    if tensor.dtype not in _LOADABLE:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in _LOADABLE)
        raise CheckpointError(
            f"tensor {name} has type {str(tensor.dtype).removeprefix('torch.')}; allowed: {allowed}"
        )
    if tensor.shape != destination.shape:
        shapes = f"{list(tensor.shape)}; config.json asks for {list(destination.shape)}"
        raise CheckpointError(f"tensor {name} has shape {shapes}")
    destination.copy_(tensor)
