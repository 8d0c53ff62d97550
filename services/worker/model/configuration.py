"""The model's configuration, read from a checkpoint folder's config.json and generation_config.json.

One `ModelConfig` for both ways of writing the file: transformers 5 (`rope_parameters`, `dtype`) and the
original (`rope_theta` and `rope_scaling`, `torch_dtype`). Fields have the checkpoint's names. Only what the
pass uses is kept, so two files that describe the same model give equal configurations.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from shared.model_files import CheckpointError, Fields, eos_token_ids, read_json

__all__ = ["CheckpointError", "ModelConfig", "RopeConfig"]

# What an architecture's router is, where config.json says nothing (transformers drops these two fields).
_SCORING_FUNC = {"DeepseekV2ForCausalLM": "softmax", "DeepseekV3ForCausalLM": "sigmoid"}
_TOPK_METHODS = {
    "DeepseekV2ForCausalLM": ("greedy", "group_limited_greedy"),
    "DeepseekV3ForCausalLM": ("noaux_tc",),
}


@dataclass(frozen=True)
class RopeConfig:
    """Plain ("default"), or YaRN with DeepSeek's two scales (see rope.py)."""

    rope_type: str
    rope_theta: float
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of one DeepSeek-V2 or V3 model. Sizes are in elements unless they say tokens."""

    architecture: str
    dtype: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rms_norm_eps: float
    attention_bias: bool
    tie_word_embeddings: bool
    # The model's context, in tokens.
    max_position_embeddings: int
    rope: RopeConfig
    # 0: every layer is dense, and the router's fields mean nothing.
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    n_shared_experts: int
    first_k_dense_replace: int
    moe_layer_freq: int
    scoring_func: str
    topk_method: str
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    # Rows and columns that share one scale in the checkpoint's FP8 weights; None: they are not in FP8.
    weight_block_size: tuple[int, int] | None
    # Ids that end a sequence, rising: the union of config.json and generation_config.json.
    eos_token_ids: tuple[int, ...]

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def cache_row_size(self) -> int:
        """Elements of one token in one layer's cache: kv_c_normed ++ k_pe."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def is_moe_layer(self, layer_index: int) -> bool:
        """Whether this layer has routed experts instead of one dense MLP."""
        is_past_dense = layer_index >= self.first_k_dense_replace
        return self.n_routed_experts > 0 and is_past_dense and layer_index % self.moe_layer_freq == 0

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Reads a checkpoint folder. CheckpointError, in one sentence, for whatever cannot be served."""
        if not folder.is_dir():
            raise CheckpointError(f"the model folder {folder} does not exist")
        path = folder / "config.json"
        fields = Fields(path, read_json(path))
        generation_path = folder / "generation_config.json"
        generation = Fields(generation_path, read_json(generation_path, required=False))
        return cls.from_fields(fields, generation)

    @classmethod
    def from_fields(cls, fields: Fields, generation: Fields) -> "ModelConfig":
        """Reads config.json's and generation_config.json's fields. CheckpointError names a bad one."""
        config = _read(fields, generation)
        _check(config, fields)
        return config


def _read(fields: Fields, generation: Fields) -> ModelConfig:
    architecture = _architecture(fields)
    num_heads = fields.integer("num_attention_heads", at_least=1)
    fields.choice("hidden_act", ("silu",), default="silu")
    fields.choice("num_key_value_heads", (num_heads,), default=num_heads)
    fields.choice("rope_interleave", (True,), default=True)
    fields.choice("mlp_bias", (False,), default=False)
    num_experts = fields.integer("n_routed_experts", default=0)
    topk_methods = _TOPK_METHODS[architecture]
    scoring_func = _SCORING_FUNC[architecture]
    return ModelConfig(
        architecture=architecture,
        dtype=str(fields.get("dtype") or fields.get("torch_dtype") or "float32"),
        vocab_size=fields.integer("vocab_size", at_least=1),
        hidden_size=fields.integer("hidden_size", at_least=1),
        intermediate_size=fields.integer("intermediate_size", at_least=1),
        num_hidden_layers=fields.integer("num_hidden_layers", at_least=1),
        num_attention_heads=num_heads,
        q_lora_rank=fields.integer("q_lora_rank", default=0) or None,
        kv_lora_rank=fields.integer("kv_lora_rank", at_least=1),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim", at_least=1),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim", at_least=2),
        v_head_dim=fields.integer("v_head_dim", at_least=1),
        rms_norm_eps=fields.number("rms_norm_eps", default=1e-6),
        attention_bias=fields.boolean("attention_bias", default=False),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", default=False),
        max_position_embeddings=fields.integer("max_position_embeddings", at_least=1),
        rope=_rope(fields),
        n_routed_experts=num_experts,
        num_experts_per_tok=fields.integer("num_experts_per_tok", at_least=1) if num_experts else 0,
        moe_intermediate_size=fields.integer("moe_intermediate_size", at_least=1) if num_experts else 0,
        n_shared_experts=fields.integer("n_shared_experts", default=0),
        first_k_dense_replace=fields.integer("first_k_dense_replace", default=0),
        moe_layer_freq=fields.integer("moe_layer_freq", default=1, at_least=1),
        scoring_func=fields.choice("scoring_func", (scoring_func,), default=scoring_func),
        topk_method=fields.choice("topk_method", topk_methods, default=topk_methods[0]),
        n_group=fields.integer("n_group", default=1, at_least=1),
        topk_group=fields.integer("topk_group", default=1, at_least=1),
        norm_topk_prob=fields.boolean("norm_topk_prob", default=False),
        routed_scaling_factor=fields.number("routed_scaling_factor", default=1.0),
        weight_block_size=_weight_block_size(fields),
        eos_token_ids=eos_token_ids(fields, generation),
    )


def _architecture(fields: Fields) -> str:
    """The supported entry of `architectures`; relatives (Moonlight, Kimi K2) name one of the two as well."""
    named = fields.get("architectures") or []
    for architecture in named if isinstance(named, list) else []:
        if architecture in _SCORING_FUNC:
            return str(architecture)
    raise fields.error("architectures", named, f"one of {', '.join(_SCORING_FUNC)}")


def _rope(fields: Fields) -> RopeConfig:
    """Reads rope_parameters (rope_theta inside) or rope_scaling (rope_theta beside it)."""
    name = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    rope = fields.section(name)
    theta = rope if rope.get("rope_theta") is not None else fields
    rope_theta = theta.number("rope_theta", default=10000.0, above=0.0)
    type_name = "rope_type" if rope.get("rope_type") is not None else "type"
    if rope.choice(type_name, ("default", "yarn"), default="default") == "default":
        return RopeConfig("default", rope_theta)
    known = {field.name for field in dataclasses.fields(RopeConfig)} | {"type"}
    rope.refuse_others(known)
    return RopeConfig(
        "yarn",
        rope_theta,
        factor=rope.number("factor", above=0.0),
        original_max_position_embeddings=rope.integer("original_max_position_embeddings", at_least=1),
        beta_fast=rope.number("beta_fast", default=32.0, above=0.0),
        beta_slow=rope.number("beta_slow", default=1.0, above=0.0),
        mscale=rope.number("mscale", default=1.0),
        mscale_all_dim=rope.number("mscale_all_dim", default=0.0),
    )


def _weight_block_size(fields: Fields) -> tuple[int, int] | None:
    """Reads quantization_config, of which one kind is known: FP8 (e4m3) with a scale per block."""
    if fields.get("quantization_config") is None:
        return None
    quantization = fields.section("quantization_config")
    quantization.choice("quant_method", ("fp8",), default="")
    quantization.choice("fmt", ("e4m3",), default="e4m3")
    block_size = quantization.integers("weight_block_size")
    if len(block_size) != 2 or 0 in block_size:
        raise quantization.error("weight_block_size", block_size, "two integers from 1")
    return block_size[0], block_size[1]


def _check(config: ModelConfig, fields: Fields) -> None:
    """Rules that involve several fields."""
    if config.qk_rope_head_dim % 2:
        raise fields.error("qk_rope_head_dim", config.qk_rope_head_dim, "even numbers")
    for token_id in config.eos_token_ids:
        if token_id >= config.vocab_size:
            raise fields.error("eos_token_id", token_id, f"0 to vocab_size - 1 = {config.vocab_size - 1}")
    if not config.n_routed_experts:
        return
    if config.n_routed_experts % config.n_group:
        raise fields.error(
            "n_group", config.n_group, f"divisors of n_routed_experts = {config.n_routed_experts}"
        )
    if config.topk_group > config.n_group:
        raise fields.error("topk_group", config.topk_group, f"1 to n_group = {config.n_group}")
    is_grouped = config.topk_method != "greedy"
    num_groups = config.topk_group if is_grouped else config.n_group
    num_choosable = config.n_routed_experts // config.n_group * num_groups
    if config.num_experts_per_tok > num_choosable:
        allowed = f"1 to {num_choosable}, the experts that the router may choose from"
        raise fields.error("num_experts_per_tok", config.num_experts_per_tok, allowed)
