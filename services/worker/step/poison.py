"""--poison-cache: NaN in every slot without a token, so that reading one shows in results (pitfall M9)."""

import numpy as np
import torch

from services.worker.model.input_batch import InputBatch
from services.worker.model.kv_cache import NULL_BLOCK, KVCache


class CachePoison:
    """Results stay finite and equal as long as only slots are read whose tokens count.

    The worker does not know which blocks the scheduler has freed, and need not: the context_len of the next
    sequence that uses one says which of its slots hold nothing.
    """

    def __init__(self, cache: KVCache, *, num_layers: int, block_size: int) -> None:
        """Poisons all blocks but the null block, whose slot 0 pads tables and must stay finite."""
        self._layers = [cache.layer(i) for i in range(num_layers)]
        self._block_size = block_size
        for layer in self._layers:
            layer[(NULL_BLOCK + 1) * block_size :] = torch.nan

    def before_step(self, batch: InputBatch) -> None:
        """Poisons the slots from each sequence's context_len to the end of its last block."""
        slots = np.concatenate(
            [
                self._slots(block_table)[context_len:]
                for block_table, context_len in zip(batch.block_tables, batch.context_lens, strict=True)
            ]
        )
        for layer in self._layers:
            layer[torch.from_numpy(slots).to(layer.device)] = torch.nan

    def _slots(self, block_table: np.ndarray) -> np.ndarray:
        return (block_table[:, None] * self._block_size + np.arange(self._block_size)).flatten()
