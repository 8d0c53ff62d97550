"""The kinds of tiny checkpoints that the worker is proved on: every size and switch of pitfalls M1 to M12."""

from dataclasses import dataclass, field
from typing import Any

import torch

# Sizes that no two of them share, so that a swapped pair has the wrong shape.
SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 72,
    "intermediate_size": 80,
    "moe_intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "kv_lora_rank": 48,
    "q_lora_rank": None,
    "qk_nope_head_dim": 14,
    "qk_rope_head_dim": 16,
    "v_head_dim": 10,
    "max_position_embeddings": 512,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
ONE_HEAD = {"num_attention_heads": 1, "num_key_value_heads": 1, "qk_rope_head_dim": 2}
# As many heads and as wide a latent as DeepSeek-V2-Lite; the hidden size is a multiple of the heads.
SIXTEEN_HEADS = {
    "hidden_size": 96,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
EIGHT_GROUPS = {"n_routed_experts": 24, "n_group": 8, "topk_group": 3}


def yarn(mscale: float, mscale_all_dim: float) -> dict[str, Any]:
    """A stretched context in which all three ranges of YaRN's ramp occur."""
    return {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 4.0,
        "beta_slow": 1.0,
        "mscale": mscale,
        "mscale_all_dim": mscale_all_dim,
    }


@dataclass(frozen=True)
class Variant:
    """One kind of checkpoint: the architecture, what differs from SIZES, and how it is written."""

    version: str
    # n_shared_experts None: none, which transformers cannot express (see checkpoints.py).
    sizes: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    shard_size: str = "1GB"
    # In the form of DeepSeek's own releases, instead of transformers 5's.
    is_original_form: bool = False
    # Layers past num_hidden_layers, as in DeepSeek-V3's release.
    has_extra_layer: bool = False


VARIANTS = {
    "v2_plain": Variant("v2", {"n_shared_experts": 2, "routed_scaling_factor": 1.3}),
    "v2_grouped_yarn": Variant(
        "v2",
        {
            **EIGHT_GROUPS,
            "q_lora_rank": 24,
            "kv_lora_rank": 64,
            "first_k_dense_replace": 0,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 4.0,
            "rope_parameters": yarn(0.707, 0.707),
        },
        shard_size="150KB",
        is_original_form=True,
    ),
    "v2_one_head": Variant(
        "v2",
        {**ONE_HEAD, "q_lora_rank": 24, "attention_bias": True, "tie_word_embeddings": True},
        dtype=torch.bfloat16,
    ),
    "v2_sixteen_heads": Variant(
        "v2",
        {**SIXTEEN_HEADS, "first_k_dense_replace": 3, "rope_parameters": yarn(1.0, 0.5)},
        dtype=torch.float16,
        is_original_form=True,
    ),
    "v2_no_shared_experts": Variant(
        "v2",
        {**EIGHT_GROUPS, "topk_method": "group_limited_greedy", "n_shared_experts": None},
        is_original_form=True,
    ),
    "v2_bias_yarn": Variant(
        "v2",
        {"attention_bias": True, "first_k_dense_replace": 0, "rope_parameters": yarn(0.707, 0.707)},
        shard_size="200KB",
    ),
    "v3_plain": Variant(
        "v3",
        {"n_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 0.8, "tie_word_embeddings": True},
    ),
    "v3_grouped_yarn": Variant(
        "v3",
        {
            **EIGHT_GROUPS,
            "q_lora_rank": 24,
            "kv_lora_rank": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "first_k_dense_replace": 0,
            "rope_parameters": yarn(1.0, 1.0),
            "attention_bias": True,
        },
        dtype=torch.bfloat16,
        shard_size="100KB",
        is_original_form=True,
        has_extra_layer=True,
    ),
    "v3_two_mscales": Variant(
        "v3",
        {"first_k_dense_replace": 3, "q_lora_rank": 24, "rope_parameters": yarn(1.4, 0.6)},
        dtype=torch.float16,
    ),
    "v3_one_head": Variant(
        "v3", {**ONE_HEAD, "first_k_dense_replace": 0, "n_shared_experts": 2}, is_original_form=True
    ),
    "v3_sixteen_heads": Variant(
        "v3",
        {**SIXTEEN_HEADS, "q_lora_rank": 24, "n_routed_experts": 16, "n_group": 4, "topk_group": 2},
        dtype=torch.bfloat16,
        shard_size="1MB",
    ),
    "v3_one_expert": Variant(
        "v3",
        {"num_experts_per_tok": 1, "norm_topk_prob": False, "routed_scaling_factor": 2.5},
        has_extra_layer=True,
    ),
    "v3_no_shared_experts": Variant(
        "v3",
        {"q_lora_rank": 24, "n_shared_experts": None, "rope_parameters": yarn(1.0, 1.0)},
        shard_size="120KB",
        is_original_form=True,
    ),
}
