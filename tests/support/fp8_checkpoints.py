"""FP8 checkpoints as DeepSeek-V3 is published, and the twins that say in bf16 or fp32 what they mean."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

FP8 = torch.float8_e4m3fn


def to_fp8(folder: Path, block_size: tuple[int, int]) -> dict[str, torch.Tensor]:
    """Quantises every projection of a folder in place; returns what all of its weights then mean.

    The scales lie beside their weights, and in the index if there is one.
    """
    meant: dict[str, torch.Tensor] = {}
    index_path = folder / "model.safetensors.index.json"
    index = json.loads(index_path.read_text()) if index_path.exists() else None
    for path in sorted(folder.glob("*.safetensors")):
        tensors = load_file(path)
        for name, weight in list(tensors.items()):
            meant[name] = weight
            if _is_quantised(name):
                tensors[name], scale = _quantise(weight, block_size)
                tensors[f"{name}_scale_inv"] = scale
                meant[name] = _expand(scale, block_size, weight.shape) * tensors[name].float()
                if index is not None:
                    index["weight_map"][f"{name}_scale_inv"] = path.name
        save_file(tensors, path, metadata={"format": "pt"})
    if index is not None:
        index_path.write_text(json.dumps(index))
    quantization = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(block_size)}
    _update_config(folder, quantization_config=quantization)
    return meant


def to_twin(folder: Path, meant: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
    """Makes a quantised folder an ordinary one, in place: one file, what was quantised rounded to `dtype`."""
    for path in (*folder.glob("*.safetensors"), *folder.glob("*.index.json")):
        path.unlink()
    weights = {name: tensor.to(dtype) if _is_quantised(name) else tensor for name, tensor in meant.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _update_config(folder, quantization_config=None)


def _is_quantised(name: str) -> bool:
    """Every projection; not the router, norms, biases, embedding and output layer."""
    return name.endswith((".kv_a_proj_with_mqa.weight", "_proj.weight"))


def _quantise(weight: torch.Tensor, block_size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Each block divided by its largest magnitude over FP8's largest number; the weight and the scales."""
    scale = torch.empty([-(-length // block) for length, block in zip(weight.shape, block_size, strict=True)])
    for i, rows in enumerate(weight.float().split(block_size[0])):
        for j, block in enumerate(rows.split(block_size[1], dim=1)):
            scale[i, j] = block.abs().max() / torch.finfo(FP8).max
    return (weight.float() / _expand(scale, block_size, weight.shape)).to(FP8), scale


def _expand(scale: torch.Tensor, block_size: tuple[int, int], shape: torch.Size) -> torch.Tensor:
    rows = scale.repeat_interleave(block_size[0], dim=0)[: shape[0]]
    return rows.repeat_interleave(block_size[1], dim=1)[:, : shape[1]]


def _update_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))
