"""The bytes of the KV cache: latent rows in blocks. The scheduler decides which block holds what."""

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from services.worker.model.configuration import ModelConfig

NULL_BLOCK = 0


class KVCache:
    """Rows kv_c_normed ++ k_pe of every layer, block and offset.

    Starts at zero. The null block stays zero: nothing writes it, and its slot 0 pads batches, so that masked
    values are finite (0 × NaN would reach the output).
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (config.num_hidden_layers, num_blocks, block_size, config.cache_row_size)
        self._blocks = _zeros(shape, dtype, device)

    def layer(self, layer_index: int) -> Tensor:
        """One layer's rows by slot, a view [num_blocks × block_size, row]."""
        return self._blocks[layer_index].flatten(0, 1)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies whole blocks in all layers; every source is read before any target is written."""
        if sources:
            index = torch.tensor([sources, targets], device=self._blocks.device)
            self._blocks[:, index[1]] = self._blocks[:, index[0]]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On the CPU in pages that the kernel allocates on first write: an unused cache takes no memory."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.uint8).view(dtype).view(shape)


def bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Over all layers."""
    return config.num_hidden_layers * block_size * config.cache_row_size * dtype.itemsize


def num_blocks_for(memory_bytes: int, config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Blocks that fit in so much memory, the null block included."""
    return memory_bytes // bytes_per_block(config, block_size, dtype)
