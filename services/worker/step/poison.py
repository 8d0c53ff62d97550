"""--poison-cache: NaN in every slot that no token owns, so that whoever reads one shows it (pitfall M9)."""

import numpy as np
import torch

from services.worker.model.input_batch import InputBatch
from services.worker.model.kv_cache import NULL_BLOCK, KVCache


class CachePoison:
    """Results stay finite and equal as long as nobody reads what was not written, or no longer counts.

    The worker does not know which blocks the scheduler has freed. It need not: whoever gets one next says by
    its context_len that what lies behind is not its own.
    """

    def __init__(self, cache: KVCache, *, num_layers: int, block_size: int) -> None:
        """Poisons all but the null block, which readers fill rectangles with: nothing is written yet."""
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
