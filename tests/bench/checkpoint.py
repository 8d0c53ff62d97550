"""The benchmark's model: random weights in DeepSeek-V3's architecture, a few hundred million parameters."""

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from shared.demo_model import PATH as DEMO_MODEL

VOCAB_SIZE = 32_000


def bench_config() -> DeepseekV3Config:
    """465 M parameters, of which a token touches 124 M: wide enough that matmuls dominate."""
    return DeepseekV3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=1024,
        intermediate_size=4096,
        moe_intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=16,
        n_shared_experts=1,
        n_routed_experts=32,
        num_experts_per_tok=4,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        q_lora_rank=384,
        kv_lora_rank=256,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )


def write_checkpoint(folder: Path) -> int:
    """Writes it in bfloat16, unless it is there; returns the number of parameters.

    The tokenizer is the demo model's: render needs one, the benchmark sends tokens.
    """
    config = bench_config()
    if not (folder / "config.json").exists():
        torch.manual_seed(0)
        model: Any = DeepseekV3ForCausalLM(config)
        model = model.to(torch.bfloat16)
        model.save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(DEMO_MODEL / name, folder / name)
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in DeepseekV3ForCausalLM(config).parameters())
