"""DeepSeek's attention block in fp64, as the papers write it: nothing absorbed, cached, tiled or packed."""

import math

import numpy as np

from services.worker.model.configuration import ModelConfig

# As in DeepSeek's own code, whatever rms_norm_eps says.
INNER_EPS = 1e-6

Tensors = dict[str, np.ndarray]


def phases(config: ModelConfig, num_tokens: int) -> np.ndarray:
    """e^(i × position × frequency) of plain rope, [tokens, qk_rope_head_dim / 2]."""
    dim = config.qk_rope_head_dim
    frequencies = config.rope.rope_theta ** (-np.arange(0, dim, 2) / dim)
    return np.exp(1j * np.arange(num_tokens)[:, None] * frequencies)


def attention_block(config: ModelConfig, tensors: Tensors, hidden: np.ndarray) -> np.ndarray:
    """hidden [tokens, hidden_size] of one whole sequence -> hidden plus the block's output."""
    num_tokens, num_heads = len(hidden), config.num_attention_heads
    turns = phases(config, num_tokens)
    x = _norm(hidden, tensors["input_layernorm.weight"], config.rms_norm_eps)

    if config.q_lora_rank is None:
        q = _linear(x, tensors, "q_proj")
    else:
        q_a = _linear(x, tensors, "q_a_proj")
        q = _linear(_norm(q_a, tensors["self_attn.q_a_layernorm.weight"], INNER_EPS), tensors, "q_b_proj")
    q = q.reshape(num_tokens, num_heads, -1)
    q_nope, q_pe = q[..., : config.qk_nope_head_dim], _turn(q[..., config.qk_nope_head_dim :], turns[:, None])

    compressed = _linear(x, tensors, "kv_a_proj_with_mqa")
    kv_c, k_pe = compressed[:, : config.kv_lora_rank], _turn(compressed[:, config.kv_lora_rank :], turns)
    kv_c = _norm(kv_c, tensors["self_attn.kv_a_layernorm.weight"], INNER_EPS)
    kv = _linear(kv_c, tensors, "kv_b_proj").reshape(num_tokens, num_heads, -1)
    k_nope, values = kv[..., : config.qk_nope_head_dim], kv[..., config.qk_nope_head_dim :]

    scores = np.einsum("ihd,jhd->hij", q_nope, k_nope) + np.einsum("ihd,jd->hij", q_pe, k_pe)
    scores = scores / math.sqrt(config.qk_nope_head_dim + config.qk_rope_head_dim)
    scores[:, np.triu(np.ones((num_tokens, num_tokens), dtype=bool), k=1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    heads = np.einsum("hij,jhd->ihd", weights, values)
    return hidden + _linear(heads.reshape(num_tokens, -1), tensors, "o_proj")


def _linear(x: np.ndarray, tensors: Tensors, name: str) -> np.ndarray:
    return x @ tensors[f"self_attn.{name}.weight"].T + tensors.get(f"self_attn.{name}.bias", 0.0)


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def _turn(x: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Adjacent pairs as complex numbers, turned by their phases."""
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turns
    return np.stack((turned.real, turned.imag), axis=-1).reshape(x.shape)
