"""The cache's bytes: zero at first, written by slot, copied by block."""

import torch

from services.worker.model.kv_cache import KVCache, bytes_per_block, num_blocks_for
from tests.unit.worker.model.configs import make_config

CONFIG = make_config()
CPU = torch.device("cpu")


def make_cache() -> KVCache:
    return KVCache(CONFIG, num_blocks=6, block_size=4, dtype=torch.float32, device=CPU)


def test_a_cache_starts_at_zero_and_has_a_row_per_slot_and_layer() -> None:
    cache = make_cache()
    for layer in range(CONFIG.num_hidden_layers):
        assert cache.layer(layer).shape == (24, CONFIG.kv_lora_rank + CONFIG.qk_rope_head_dim)
        assert not cache.layer(layer).any()


def test_rows_go_to_their_slots_in_one_layer() -> None:
    cache = make_cache()
    rows = torch.randn(3, CONFIG.cache_row_size)
    cache.layer(1)[[9, 4, 23]] = rows
    assert torch.equal(cache.layer(1)[[9, 4, 23]], rows)
    assert cache.layer(1).any(-1).sum() == 3
    assert not cache.layer(0).any()


def test_blocks_are_copied_in_all_layers_and_sources_are_read_first() -> None:
    cache = make_cache()
    for layer in range(CONFIG.num_hidden_layers):
        cache.layer(layer).copy_(torch.arange(24.0)[:, None] + 100 * layer)
    cache.copy_blocks([1, 2], [2, 5])
    for layer in range(CONFIG.num_hidden_layers):
        first = cache.layer(layer)[:, 0] - 100 * layer
        assert first.view(6, 4)[:, 0].tolist() == [0, 4, 4, 12, 16, 8]
    cache.copy_blocks([], [])


def test_memory_is_counted_over_all_layers() -> None:
    size = bytes_per_block(CONFIG, 4, torch.bfloat16)
    assert size == 3 * 4 * (48 + 16) * 2
    assert num_blocks_for(10 * size + size - 1, CONFIG, 4, torch.bfloat16) == 10
