"""Random tiny checkpoints, written by transformers: an implementation that shares no code with ours."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.utils import logging

MODEL_CLASSES = {
    "v2": (DeepseekV2Config, DeepseekV2ForCausalLM),
    "v3": (DeepseekV3Config, DeepseekV3ForCausalLM),
}
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
            "q_lora_rank": 24,
            "kv_lora_rank": 64,
            "first_k_dense_replace": 0,
            "topk_method": "group_limited_greedy",
            "n_routed_experts": 24,
            "n_group": 8,
            "topk_group": 3,
            "routed_scaling_factor": 4.0,
            "rope_parameters": yarn(0.707, 0.707),
        },
        shard_size="150KB",
        is_original_form=True,
    ),
    "v2_one_head": Variant(
        "v2",
        {
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "qk_rope_head_dim": 2,
            "q_lora_rank": 24,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
        dtype=torch.bfloat16,
    ),
    "v3_plain": Variant(
        "v3",
        {"n_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 0.8, "tie_word_embeddings": True},
    ),
    "v3_grouped_yarn": Variant(
        "v3",
        {
            "q_lora_rank": 24,
            "kv_lora_rank": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "first_k_dense_replace": 0,
            "n_routed_experts": 24,
            "n_group": 8,
            "topk_group": 3,
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
}


def write_checkpoint(variant: Variant, folder: Path) -> Path:
    """Writes the variant's checkpoint into `folder`, the same one each time."""
    config_class, model_class = MODEL_CLASSES[variant.version]
    config = config_class(**{**SIZES, "rope_parameters": {"rope_theta": 10000.0}, **variant.sizes})
    config.num_hidden_layers += variant.has_extra_layer
    model = model_class(config)
    _randomise(model)
    config.num_hidden_layers -= variant.has_extra_layer
    with _quiet_transformers():
        model.to(variant.dtype).save_pretrained(folder, max_shard_size=variant.shard_size)
    if variant.is_original_form:
        _to_original_form(folder / "config.json")
    return folder


def load_with_transformers(folder: Path) -> torch.nn.Module:
    """The checkpoint in fp32, with the plainest attention that transformers has."""
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    classes = {model_class.__name__: model_class for _, model_class in MODEL_CLASSES.values()}
    with _quiet_transformers():
        model = classes[architecture].from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
    # `generate` then goes on to the length asked for.
    model.generation_config.eos_token_id = None
    return model.eval()


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Without its progress bars and its report on the extra layer, which it skips as we do."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()


@torch.no_grad()
def _randomise(model: torch.nn.Module) -> None:
    """Activations of size one in every layer, a router with spread scores, logits that are far apart."""
    generator = torch.Generator().manual_seed(20)

    def normal(tensor: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=generator) * scale

    for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("inv_freq"):
            continue
        if "norm" in name:
            parameter.copy_(1.0 + normal(parameter, 0.2))
        elif name.endswith("e_score_correction_bias"):
            parameter.copy_(normal(parameter, 0.5))
        elif name.endswith("bias"):
            parameter.copy_(normal(parameter, 0.3))
        elif "embed_tokens" in name or "lm_head" in name:
            parameter.copy_(normal(parameter, 1.0))
        else:
            parameter.copy_(normal(parameter, 1.5 * parameter.shape[-1] ** -0.5))


def _to_original_form(path: Path) -> None:
    """rope_theta beside rope_scaling, `type` inside it, torch_dtype, and the router's fields spelled out."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = None if rope["type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    is_v3 = config["architectures"] == ["DeepseekV3ForCausalLM"]
    config["scoring_func"] = "sigmoid" if is_v3 else "softmax"
    config["topk_method"] = "noaux_tc" if is_v3 else config["topk_method"]
    path.write_text(json.dumps(config))
