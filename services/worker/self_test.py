"""Run before a worker serves from anything but a CPU: does the device compute what a CPU does? (pitfall M10)

Attention on Apple's MPS was silently wrong in several ways, each in some releases only: a causal leak in half
precision, a wrong width where values are narrower than keys, NaN for a fully masked row, sorting of strided
views. So a small model of random weights runs on the device and in fp32 on the CPU, through both forms of
attention, chunks, padded decodes and the router; a device that differs is refused. It takes well under a
second.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from triptych.v1 import worker_pb2

from services.worker.backends.reference.backend import ReferenceBackend
from services.worker.model.backend import Backend
from services.worker.model.configuration import ModelConfig, RopeConfig
from services.worker.model.deepseek import DeepseekModel
from services.worker.model.input_batch import InputBatch
from services.worker.model.kv_cache import KVCache
from services.worker.model.layers import Storage

# The device that the others are compared with.
TRUSTED_DEVICE = "cpu"
REFERENCE_DEVICE = torch.device(TRUSTED_DEVICE)
# No two sizes alike, values narrower than keys. The router's biases are far apart: no expert is chosen by
# rounding.
CONFIG = ModelConfig(
    architecture="DeepseekV3ForCausalLM",
    dtype="float32",
    vocab_size=61,
    hidden_size=48,
    intermediate_size=56,
    num_hidden_layers=2,
    num_attention_heads=3,
    q_lora_rank=20,
    kv_lora_rank=32,
    qk_nope_head_dim=12,
    qk_rope_head_dim=8,
    v_head_dim=10,
    rms_norm_eps=1e-6,
    attention_bias=True,
    tie_word_embeddings=False,
    max_position_embeddings=256,
    rope=RopeConfig("yarn", 10000.0, 4.0, 64, 4.0, 1.0, 1.0, 0.7),
    n_routed_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    n_shared_experts=1,
    first_k_dense_replace=1,
    moe_layer_freq=1,
    scoring_func="sigmoid",
    topk_method="noaux_tc",
    n_group=4,
    topk_group=2,
    norm_topk_prob=True,
    routed_scaling_factor=1.5,
    weight_block_size=None,
    eos_token_ids=(),
)
BLOCK_SIZE = 4
# Query and context lengths of each step's sequences: whole prompts, suffixes in both forms of attention,
# padded decodes, all of them together. A sequence has its own blocks, by its place in the step.
STEPS = (
    ((24, 0), (3, 0), (1, 0)),
    ((40, 24), (2, 3), (1, 1)),
    ((1, 64), (1, 5), (17, 2)),
    ((1, 65), (1, 6), (1, 19)),
)
BLOCKS_EACH = 20
# Largest difference of logits, whose standard deviation is about 0.7.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15}


class SelfTestError(Exception):
    """The device computes wrong results. The message is one sentence."""


def check_device(device: torch.device, dtype: torch.dtype, backend: Backend[Any]) -> None:
    """Raises SelfTestError if `backend` on this device and in this type does not agree with the CPU."""
    if device.type == TRUSTED_DEVICE:
        return
    try:
        actual = _logits(DeepseekModel(CONFIG, backend, Storage(dtype, device)))
    except (RuntimeError, NotImplementedError) as error:
        raise SelfTestError(f"{device.type} cannot run the model: {str(error).splitlines()[0]}") from error
    reference = Storage(torch.float32, REFERENCE_DEVICE)
    expected = _logits(DeepseekModel(CONFIG, ReferenceBackend(), reference))
    for i, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        difference = float((ours - theirs).abs().max())
        # False for NaN too.
        if not difference <= TOLERANCE[dtype]:
            raise SelfTestError(
                f"{device.type} computes something else than the CPU: in step {i + 1} of the self-test, in "
                f"{dtype}, logits differ by {difference:.3g}; allowed: {TOLERANCE[dtype]:g}"
            )


@torch.inference_mode()
def _logits(model: DeepseekModel) -> list[Tensor]:
    """Of every token of each step, on the CPU."""
    _randomise(model)
    cache = KVCache(
        CONFIG,
        num_blocks=1 + BLOCKS_EACH * len(STEPS[0]),
        block_size=BLOCK_SIZE,
        dtype=model.dtype,
        device=model.device,
    )
    results = []
    for lengths in STEPS:
        batch = InputBatch.from_step(_step(lengths), block_size=BLOCK_SIZE, device=model.device)
        results.append(model.logits(model.forward(batch, cache)).cpu())
    return results


def _randomise(model: DeepseekModel) -> None:
    """The same weights on every device and in every dtype, up to rounding."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in model.weights().items():
        values = torch.randn(tensor.shape, generator=generator) * tensor.shape[-1] ** -0.5
        if name.endswith("e_score_correction_bias"):
            values = torch.linspace(0, 100, len(values))
        elif "norm" in name or name.endswith("embed_tokens.weight"):
            values = values * tensor.shape[-1] ** 0.5
        tensor.copy_(values)


def _step(lengths: tuple[tuple[int, int], ...]) -> worker_pb2.Step:
    """Sequences of these query and context lengths, their blocks from the back to the front."""
    sequences = []
    for i, (query_len, context_len) in enumerate(lengths):
        positions = np.arange(context_len, context_len + query_len)
        first_block = 1 + i * BLOCKS_EACH
        num_blocks = -(-(context_len + query_len) // BLOCK_SIZE)
        sequences.append(
            worker_pb2.SequenceStep(
                sequence_key=i,
                token_ids=((positions * 7 + i * 13) % CONFIG.vocab_size).tolist(),
                context_len=context_len,
                block_ids=list(range(first_block, first_block + num_blocks)),
            )
        )
    return worker_pb2.Step(sequences=sequences)
