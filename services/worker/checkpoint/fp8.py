"""FP8 weights with one scale per block, as DeepSeek publishes V3 (arXiv:2412.19437, §3.3)."""

import torch
from torch import Tensor

from services.worker.model.configuration import CheckpointError

FP8 = torch.float8_e4m3fn
SCALE_SUFFIX = "_scale_inv"


def dequantise(name: str, weight: Tensor, scale: Tensor | None, block_size: tuple[int, int] | None) -> Tensor:
    """weight [rows, columns] × scale [blocks of rows, of columns] -> fp32; other types stay as they are.

    In the checkpoint's own layout, before anything is split or stacked: blocks at the end may be partial, and
    need not end where a head does. CheckpointError if the scale is missing, needless, or of the wrong shape.
    """
    if weight.dtype != FP8:
        if scale is not None:
            raise CheckpointError(f"tensor {name} has a scale but is in {weight.dtype}; allowed: {FP8}")
        return weight
    if block_size is None:
        raise CheckpointError(f"tensor {name} is in FP8, but config.json has no quantization_config")
    if scale is None:
        raise CheckpointError(f"tensor {name} is in FP8, but {name}{SCALE_SUFFIX} is missing")
    expected = [-(-length // block) for length, block in zip(weight.shape, block_size, strict=True)]
    if list(scale.shape) != expected:
        raise CheckpointError(
            f"tensor {name}{SCALE_SUFFIX} has shape {list(scale.shape)}; allowed: {expected}"
        )
    result = weight.float()
    # By rows of blocks, in place: a whole tensor of scales would double the peak memory.
    for rows, row_scale in zip(result.split(block_size[0]), scale.float(), strict=True):
        rows.mul_(row_scale.repeat_interleave(block_size[1])[: weight.shape[1]])
    return result
