"""Both forms of attention against a textbook one in fp64, over sizes, tiles and hostile caches."""

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from services.worker.backends.reference import mla
from services.worker.backends.reference.mla import Mla, is_mha_cheaper
from services.worker.model.configuration import ModelConfig
from services.worker.model.layers import Storage
from services.worker.model.rope import Rope, softmax_scale
from tests.unit.worker.model.configs import make_config

CPU = torch.device("cpu")
SIZES = [
    {},
    {"num_attention_heads": 1, "num_key_value_heads": 1, "qk_rope_head_dim": 2, "kv_lora_rank": 64},
    {"num_attention_heads": 16, "num_key_value_heads": 16, "qk_nope_head_dim": 24, "v_head_dim": 32},
    {"q_lora_rank": 24, "attention_bias": True, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
]
# Query and context lengths.
LENGTHS = [(1, 0), (1, 1), (1, 40), (2, 15), (17, 0), (16, 33), (40, 3)]


def make_mla(config: ModelConfig) -> Mla:
    generator = torch.Generator().manual_seed(1)
    layer = Mla(config, Storage(torch.float64, CPU))
    for tensor in layer.weights("self_attn").values():
        tensor.copy_(
            torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * tensor.shape[-1] ** -0.5
        )
    return layer


def textbook(config: ModelConfig, layer: Mla, x: Tensor) -> Tensor:
    """The algebra of mla.py's header, one head and one query at a time: heads [tokens, H, v]."""
    cos, sin = Rope(config, CPU).cos_sin(torch.arange(len(x)))
    q_nope, q_pe = layer.project_query(x, cos, sin)
    kv_c, k_pe = layer.project_rows(x, cos, sin).split((config.kv_lora_rank, config.qk_rope_head_dim), dim=-1)
    kv_b = layer.weights("")[".kv_b_proj.weight"].view(config.num_attention_heads, -1, config.kv_lora_rank)
    heads = torch.zeros(len(x), config.num_attention_heads, config.v_head_dim, dtype=torch.float64)
    for head in range(config.num_attention_heads):
        w_uk, w_uv = kv_b[head].split((config.qk_nope_head_dim, config.v_head_dim))
        for i in range(len(x)):
            k_nope, values = kv_c[: i + 1] @ w_uk.T, kv_c[: i + 1] @ w_uv.T
            scores = k_nope @ q_nope[i, head] + k_pe[: i + 1] @ q_pe[i, head]
            heads[i, head] = scores.softmax(-1) @ values
    return heads


@pytest.mark.parametrize("max_scratch", [mla.MAX_SCRATCH, 2000], ids=["one tile", "many tiles"])
@pytest.mark.parametrize("sizes", SIZES, ids=["small", "one head", "16 heads", "large latent"])
def test_mha_equals_mqa_equals_the_textbook(
    sizes: dict[str, Any], max_scratch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mla, "MAX_SCRATCH", max_scratch)
    config = make_config(**sizes)
    layer = make_mla(config)
    generator = torch.Generator().manual_seed(2)
    for query_len, context_len in LENGTHS:
        seq_len = query_len + context_len
        x = torch.randn(seq_len, config.hidden_size, generator=generator, dtype=torch.float64)
        expected = textbook(config, layer, x)[context_len:]
        positions = torch.arange(seq_len)
        cos, sin = Rope(config, CPU).cos_sin(positions)
        # Every slot that is not the sequence's own holds NaN; only the null slot is zero.
        cache_layer = torch.full((3 * seq_len + 4, config.cache_row_size), torch.nan, dtype=torch.float64)
        cache_layer[0] = 0
        slots = torch.tensor(random.Random(seq_len).sample(range(1, len(cache_layer)), seq_len))
        cache_layer[slots] = layer.project_rows(x, cos, sin)
        q_nope, q_pe = (q[context_len:] for q in layer.project_query(x, cos, sin))
        mha = layer.attend_mha(q_nope, q_pe, cache_layer, slots)
        padded = torch.cat((slots, torch.zeros(5, dtype=torch.int64)))[None]
        mqa = layer.attend_mqa(q_nope, q_pe, cache_layer, padded, positions[None, context_len:])
        torch.testing.assert_close(mha, expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(mqa, expected, rtol=0, atol=1e-10)


def test_sequences_in_one_group_do_not_see_each_other() -> None:
    config = make_config()
    layer = make_mla(config)
    seq_lens = [1, 9, 30]
    cache_layer = torch.full((64, config.cache_row_size), torch.nan, dtype=torch.float64)
    cache_layer[0] = 0
    queries, expected, tables, start = [], [], [], 1
    for seq_len in seq_lens:
        x = torch.randn(seq_len, config.hidden_size, dtype=torch.float64)
        cos, sin = Rope(config, CPU).cos_sin(torch.arange(seq_len))
        slots = torch.arange(start, start + seq_len)
        cache_layer[slots] = layer.project_rows(x, cos, sin)
        queries.append([q[-1:] for q in layer.project_query(x, cos, sin)])
        expected.append(textbook(config, layer, x)[-1:])
        tables.append(torch.nn.functional.pad(slots, (0, max(seq_lens) - seq_len)))
        start += seq_len
    q_nope, q_pe = (torch.cat(parts) for parts in zip(*queries, strict=True))
    positions = torch.tensor(seq_lens)[:, None] - 1
    heads = layer.attend_mqa(q_nope, q_pe, cache_layer, torch.stack(tables), positions)
    torch.testing.assert_close(heads, torch.cat(expected), rtol=0, atol=1e-10)


def test_extreme_scores_stay_finite() -> None:
    config = make_config()
    layer = make_mla(config)
    layer.weights("")[".q_proj.weight"].mul_(1e4)
    x = torch.randn(20, config.hidden_size, dtype=torch.float64)
    cos, sin = Rope(config, CPU).cos_sin(torch.arange(20))
    q_nope, q_pe = layer.project_query(x, cos, sin)
    rows, slots = layer.project_rows(x, cos, sin), torch.arange(20)
    mha = layer.attend_mha(q_nope, q_pe, rows, slots)
    assert mha.isfinite().all()
    torch.testing.assert_close(mha, layer.attend_mqa(q_nope, q_pe, rows, slots[None], slots[None]))


@pytest.mark.parametrize("seq_len", [300, 4000])
def test_scratch_memory_does_not_grow_with_the_context(seq_len: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 20_000
    monkeypatch.setattr(mla, "MAX_SCRATCH", limit)
    config = make_config()
    layer = make_mla(config)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor) and not result._is_view() and result.dtype == torch.float64:
                largest = max(largest, result.numel())
            return result

    q_nope = torch.randn(8, 3, config.qk_nope_head_dim, dtype=torch.float64)
    q_pe = torch.randn(8, 3, config.qk_rope_head_dim, dtype=torch.float64)
    cache_layer, slots = (
        torch.randn(seq_len, config.cache_row_size, dtype=torch.float64),
        torch.arange(seq_len),
    )
    with Watch():
        layer.attend_mha(q_nope, q_pe, cache_layer, slots)
        layer.attend_mqa(q_nope, q_pe, cache_layer, slots[None], slots[None, -8:])
    assert 0 < largest <= limit


def test_the_forms_cross_where_the_sizes_say() -> None:
    config = make_config(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    # architecture.md: DeepSeek's sizes, about 171, over a long context.
    assert not is_mha_cheaper(config, 170, 100_000)
    assert is_mha_cheaper(config, 172, 100_000)
    # A whole prompt pays for no more expansion than absorption would cost it.
    assert is_mha_cheaper(config, 40, 40)
    assert not is_mha_cheaper(config, 1, 2)


def test_the_scale_covers_nope_and_rope_and_yarn_squares_its_mscale() -> None:
    plain = make_config()
    assert softmax_scale(plain) == (14 + 16) ** -0.5
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "original_max_position_embeddings": 64}
    stretched = make_config(rope_parameters={**rope, "mscale": 0.9, "mscale_all_dim": 0.707})
    expected = 30**-0.5 * (0.1 * 0.707 * math.log(40) + 1) ** 2
    assert softmax_scale(stretched) == pytest.approx(expected, rel=1e-12)
    assert softmax_scale(make_config(rope_parameters={**rope, "mscale": 0.9})) == 30**-0.5
