"""Both forms of attention against the textbook, to 1e-10 in fp64, whatever the sizes, chunks and inputs."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from triptych.v1 import worker_pb2

from services.worker.backends.reference import attention_plan, mla
from services.worker.backends.reference.backend import ReferenceBackend
from services.worker.model.backend import AttentionBlock
from services.worker.model.configuration import ModelConfig
from services.worker.model.input_batch import InputBatch
from services.worker.model.kv_cache import NULL_BLOCK, KVCache
from services.worker.model.layers import Storage
from tests.qualification import textbook
from tests.support.checkpoint_variants import ONE_HEAD, SIXTEEN_HEADS
from tests.unit.worker.model.configs import make_config

CPU = torch.device("cpu")
BLOCK_SIZE = 4
SIZES: dict[str, dict[str, Any]] = {
    "small": {},
    "one head": {**ONE_HEAD, "kv_lora_rank": 64},
    "sixteen heads": SIXTEEN_HEADS,
    "query rank and bias": {"q_lora_rank": 24, "attention_bias": True, "v_head_dim": 33},
}
# Of one sequence of 41 tokens: whole; by one; odd sizes that begin inside blocks.
CHUNKS = [[41], [1] * 41, [3, 16, 17, 1, 4], [30, 1, 1, 9]]
Weights = dict[str, Tensor]


def steep(weights: Weights, hidden: Tensor) -> None:
    """Scores of many thousands: every softmax is all but one-hot."""
    weights["self_attn.kv_a_proj_with_mqa.weight"].mul_(300.0)
    weights["self_attn.kv_a_layernorm.weight"].mul_(300.0)


def equal(weights: Weights, hidden: Tensor) -> None:
    """All tokens alike: only rope tells the keys apart."""
    hidden[:] = hidden[0].clone()


def one_outlier(weights: Weights, hidden: Tensor) -> None:
    """One channel dwarfs all others, as in trained models."""
    hidden[:, 3] = 1e4
    hidden[7] *= -1e6


def zero_tokens(weights: Weights, hidden: Tensor) -> None:
    """Norms divide by their epsilon alone."""
    hidden[::3] = 0.0


HOSTILE: dict[str, Callable[[Weights, Tensor], None]] = {
    "plain": lambda weights, hidden: None,
    "steep": steep,
    "equal": equal,
    "one outlier": one_outlier,
    "zero tokens": zero_tokens,
}


@pytest.mark.parametrize("max_scratch", [mla.MAX_SCRATCH, 2000], ids=["one tile", "many tiles"])
@pytest.mark.parametrize("inputs", HOSTILE)
@pytest.mark.parametrize("sizes", SIZES)
def test_mha_equals_mqa_equals_the_textbook(
    sizes: str, inputs: str, max_scratch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (mla, attention_plan):
        monkeypatch.setattr(module, "MAX_SCRATCH", max_scratch)
    config = make_config(**SIZES[sizes])
    block = ReferenceBackend().attention_block(config, Storage(torch.float64, CPU))
    generator = torch.Generator().manual_seed(3)
    weights = block.weights()
    for tensor in weights.values():
        tensor.normal_(generator=generator).mul_(tensor.shape[-1] ** -0.5)
    hidden = torch.randn(41, config.hidden_size, generator=generator, dtype=torch.float64)
    HOSTILE[inputs](weights, hidden)
    expected = textbook.attention_block(
        config, {name: tensor.numpy() for name, tensor in weights.items()}, hidden.numpy()
    )
    for chunks in CHUNKS:
        for is_mha in (True, False):
            monkeypatch.setattr(attention_plan, "is_mha_cheaper", lambda *_, is_mha=is_mha: is_mha)
            result = run_block(config, block, hidden, chunks)
            assert result.isfinite().all()
            scale = float(np.abs(expected - hidden.numpy()).max())
            torch.testing.assert_close(
                result - hidden, torch.from_numpy(expected) - hidden, rtol=0, atol=1e-10 * max(1.0, scale)
            )


def run_block(config: ModelConfig, block: AttentionBlock, hidden: Tensor, chunks: list[int]) -> Tensor:
    """One sequence in chunks, its blocks scattered; every slot that is not yet written holds NaN."""
    backend = ReferenceBackend()
    num_blocks = 2 * len(hidden)
    cache = KVCache(config, num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=torch.float64, device=CPU)
    cache.layer(0)[(NULL_BLOCK + 1) * BLOCK_SIZE :] = torch.nan
    block_ids = random.Random(4).sample(range(1, num_blocks), -(-len(hidden) // BLOCK_SIZE))
    turns = torch.from_numpy(textbook.phases(config, len(hidden)))
    # As Rope.cos_sin lays them out, but in fp64.
    cos = turns.real.repeat_interleave(2, dim=1)[:, None]
    sin = torch.stack((-turns.imag, turns.imag), dim=-1).flatten(1)[:, None]
    parts, start = [], 0
    for chunk in chunks:
        rows = slice(start, start + chunk)
        sequence = worker_pb2.SequenceStep(
            token_ids=[0] * chunk, context_len=start, block_ids=block_ids[: -(-(start + chunk) // BLOCK_SIZE)]
        )
        batch = InputBatch.from_step(worker_pb2.Step(sequences=[sequence]), block_size=BLOCK_SIZE, device=CPU)
        plan = backend.plan(config, batch, cos[rows], sin[rows])
        parts.append(block.forward(hidden[rows], plan, cache.layer(0)))
        start += chunk
    return torch.cat(parts)
