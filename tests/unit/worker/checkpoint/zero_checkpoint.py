"""Checkpoints for measuring memory: of any size, all zero, written without a model in memory."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from services.worker.backends.reference.backend import ReferenceBackend
from services.worker.model.configuration import ModelConfig
from services.worker.model.deepseek import DeepseekModel
from services.worker.model.layers import Storage
from tests.support.checkpoint_variants import SIZES


def write_zeros(folder: Path, sizes: dict[str, Any], num_shards: int = 1) -> None:
    """Writes a V2 model in bfloat16, its tensors dealt out to the shards in turn."""
    folder.mkdir()
    config = {**SIZES, "architectures": ["DeepseekV2ForCausalLM"], "dtype": "bfloat16", **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    meta = Storage(torch.bfloat16, torch.device("meta"))
    shapes = DeepseekModel(ModelConfig.from_folder(folder), ReferenceBackend(), meta).weights()
    weights = {name: torch.zeros(tensor.shape, dtype=torch.bfloat16) for name, tensor in shapes.items()}
    if num_shards == 1:
        save_file(weights, folder / "model.safetensors")
        return
    files = [f"model-{i}.safetensors" for i in range(num_shards)]
    weight_map = {name: files[i % num_shards] for i, name in enumerate(weights)}
    for file in files:
        save_file({name: weights[name] for name in weights if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
