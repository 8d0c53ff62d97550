"""config.json of the family's published models: each is read, by its config alone, into what its authors run.

The fields are those of the files on Hugging Face that the architecture depends on, auto_map and all.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from services.worker.backends.reference.backend import ReferenceBackend
from services.worker.checkpoint.loader import load_checkpoint
from services.worker.model.configuration import ModelConfig, RopeConfig

FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}


def auto_map(module: str, name: str) -> dict[str, str]:
    return {
        "AutoConfig": f"configuration_{module}.{name}Config",
        "AutoModel": f"modeling_{module}.{name}Model",
    }


def yarn(factor: float, beta_fast: float, mscale: float) -> dict[str, Any]:
    return {
        "beta_fast": beta_fast,
        "beta_slow": 1,
        "factor": factor,
        "mscale": mscale,
        "mscale_all_dim": mscale,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    }


COMMON = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "kv_lora_rank": 512,
    "moe_layer_freq": 1,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-6,
    "seq_aux": True,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 128,
}
V2 = {
    **COMMON,
    "architectures": ["DeepseekV2ForCausalLM"],
    "auto_map": auto_map("deepseek", "DeepseekV2"),
    "model_type": "deepseek_v2",
    "aux_loss_alpha": 0.001,
    "bos_token_id": 100000,
    "eos_token_id": 100001,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 163840,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_experts_per_tok": 6,
    "pretraining_tp": 1,
    "rope_scaling": yarn(40, 32, 0.707),
    "rope_theta": 10000,
    "scoring_func": "softmax",
    "vocab_size": 102400,
}
V3 = {
    **COMMON,
    "architectures": ["DeepseekV3ForCausalLM"],
    "auto_map": auto_map("deepseek", "DeepseekV3"),
    "ep_size": 1,
    "num_nextn_predict_layers": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "DeepSeek-V2-Lite": {
        **V2,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 64,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "routed_scaling_factor": 1.0,
        "topk_group": 1,
        "topk_method": "greedy",
    },
    "DeepSeek-V2": {
        **V2,
        "hidden_size": 5120,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "n_group": 8,
        "n_routed_experts": 160,
        "num_attention_heads": 128,
        "num_hidden_layers": 60,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "routed_scaling_factor": 16.0,
        "topk_group": 3,
        "topk_method": "group_limited_greedy",
    },
    "DeepSeek-V3 and R1": {
        **V3,
        "model_type": "deepseek_v3",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "first_k_dense_replace": 3,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "max_position_embeddings": 163840,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_attention_heads": 128,
        "num_hidden_layers": 61,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "quantization_config": FP8,
        "rope_scaling": yarn(40, 32, 1.0),
        "rope_theta": 10000,
        "routed_scaling_factor": 2.5,
        "topk_group": 4,
        "vocab_size": 129280,
    },
    "Moonlight-16B-A3B": {
        **V3,
        "model_type": "deepseek_v3",
        "num_nextn_predict_layers": 0,
        "bos_token_id": 163584,
        "eos_token_id": 163585,
        "pad_token_id": 163838,
        "first_k_dense_replace": 1,
        "hidden_size": 2048,
        "intermediate_size": 11264,
        "max_position_embeddings": 8192,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_attention_heads": 16,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 50000.0,
        "routed_scaling_factor": 2.446,
        "topk_group": 1,
        "vocab_size": 163840,
    },
    "Kimi-K2": {
        **V3,
        "model_type": "kimi_k2",
        "num_nextn_predict_layers": 0,
        "bos_token_id": 163584,
        "eos_token_id": 163585,
        "first_k_dense_replace": 1,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "max_position_embeddings": 131072,
        "moe_intermediate_size": 2048,
        "n_group": 1,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_attention_heads": 64,
        "num_hidden_layers": 61,
        "num_key_value_heads": 64,
        "q_lora_rank": 1536,
        "quantization_config": FP8,
        "rope_scaling": yarn(32.0, 1.0, 1.0),
        "rope_theta": 50000.0,
        "routed_scaling_factor": 2.827,
        "topk_group": 1,
        "vocab_size": 163840,
    },
}
ROPE = {
    "DeepSeek-V2-Lite": RopeConfig("yarn", 10000.0, 40.0, 4096, 32.0, 1.0, 0.707, 0.707),
    "DeepSeek-V2": RopeConfig("yarn", 10000.0, 40.0, 4096, 32.0, 1.0, 0.707, 0.707),
    "DeepSeek-V3 and R1": RopeConfig("yarn", 10000.0, 40.0, 4096, 32.0, 1.0, 1.0, 1.0),
    "Moonlight-16B-A3B": RopeConfig("default", 50000.0),
    "Kimi-K2": RopeConfig("yarn", 50000.0, 32.0, 4096, 1.0, 1.0, 1.0, 1.0),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_read(name: str, tmp_path: Path) -> None:
    fields = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = ModelConfig.from_folder(tmp_path)
    assert config.rope == ROPE[name]
    assert config.eos_token_ids == (fields["eos_token_id"],)
    assert config.weight_block_size == ((128, 128) if "quantization_config" in fields else None)
    for field in ("topk_method", "scoring_func", "q_lora_rank", "kv_lora_rank", "routed_scaling_factor",
                  "n_shared_experts", "norm_topk_prob", "n_group", "topk_group", "rms_norm_eps"):  # fmt: skip
        assert getattr(config, field) == fields[field], field
    num_moe_layers = sum(map(config.is_moe_layer, range(config.num_hidden_layers)))
    assert num_moe_layers == fields["num_hidden_layers"] - fields["first_k_dense_replace"]


def test_a_folder_s_own_code_is_never_run(checkpoint_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint_folder("v3_plain"), tmp_path / "remote"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "model_type": "kimi_k2", "auto_map": auto_map("deepseek", "DeepseekV3")})
    )
    for module in ("configuration_deepseek", "modeling_deepseek"):
        (folder / f"{module}.py").write_text(f"open({str(tmp_path / 'it ran')!r}, 'w')")
    cpu = torch.device("cpu")
    remote, plain = (
        load_checkpoint(each, dtype=torch.float32, device=cpu, backend=ReferenceBackend())
        for each in (folder, checkpoint_folder("v3_plain"))
    )
    assert not (tmp_path / "it ran").exists()
    assert remote.model_fingerprint == plain.model_fingerprint
