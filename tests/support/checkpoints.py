"""Random tiny checkpoints, written by transformers: an implementation that shares no code with ours."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.utils import logging

from tests.support.checkpoint_variants import SIZES, Variant

MODEL_CLASSES: dict[str, tuple[Any, Any]] = {
    "v2": (DeepseekV2Config, DeepseekV2ForCausalLM),
    "v3": (DeepseekV3Config, DeepseekV3ForCausalLM),
}


def write_checkpoint(variant: Variant, folder: Path) -> Path:
    """Writes the variant's checkpoint into `folder`, the same one each time."""
    config_class, model_class = MODEL_CLASSES[variant.version]
    sizes = {**SIZES, "rope_parameters": {"rope_theta": 10000.0}, **variant.sizes}
    has_shared_experts = sizes["n_shared_experts"] is not None
    config = config_class(**{**sizes, "n_shared_experts": sizes["n_shared_experts"] or 1})
    config.num_hidden_layers += variant.has_extra_layer
    model = model_class(config)
    _randomise(model)
    config.num_hidden_layers -= variant.has_extra_layer
    model.to(variant.dtype)
    tensors = {n: t for n, t in model.state_dict().items() if has_shared_experts or not _is_shared_expert(n)}
    with _quiet_transformers():
        model.save_pretrained(folder, state_dict=tensors, max_shard_size=variant.shard_size)
    content = json.loads((folder / "config.json").read_text())
    if not has_shared_experts:
        content["n_shared_experts"] = None
    if variant.is_original_form:
        content = to_original_form(content)
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def load_with_transformers(folder: Path) -> torch.nn.Module:
    """The checkpoint in fp32, with the plainest attention that transformers has."""
    content = json.loads((folder / "config.json").read_text())
    classes = {model_class.__name__: pair for pair in MODEL_CLASSES.values() for model_class in pair[1:]}
    config_class, model_class = classes[content["architectures"][0]]
    has_shared_experts = content["n_shared_experts"] is not None
    # transformers knows no model without shared experts: one that gives zero is the same.
    config = config_class(**{**content, "n_shared_experts": content["n_shared_experts"] or 1})
    with _quiet_transformers():
        model = model_class.from_pretrained(
            folder, config=config, dtype=torch.float32, attn_implementation="eager"
        )
    for name, parameter in model.named_parameters():
        if not has_shared_experts and _is_shared_expert(name):
            torch.nn.init.zeros_(parameter)
    return model.eval()


def to_original_form(config: dict[str, Any]) -> dict[str, Any]:
    """config.json of transformers 5 as DeepSeek writes it.

    rope_theta beside rope_scaling, `type` inside it, torch_dtype, and the router's fields spelled out.
    """
    config = dict(config)
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = None if rope["type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    is_v3 = config["architectures"] == ["DeepseekV3ForCausalLM"]
    config["scoring_func"] = "sigmoid" if is_v3 else "softmax"
    config["topk_method"] = "noaux_tc" if is_v3 else config["topk_method"]
    return config


def _is_shared_expert(name: str) -> bool:
    return ".shared_experts." in name


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
