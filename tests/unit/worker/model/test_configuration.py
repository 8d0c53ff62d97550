"""config.json in both of its forms, and every way of refusing one."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.worker.model.configuration import CheckpointError, ModelConfig, RopeConfig
from tests.support.checkpoint_variants import SIZES
from tests.unit.worker.model.configs import make_config

V2 = "DeepseekV2ForCausalLM"
YARN = {"factor": 40, "original_max_position_embeddings": 4096, "mscale": 0.707, "mscale_all_dim": 0.707}


def write(folder: Path, generation: dict[str, Any] | None = None, **values: Any) -> ModelConfig:
    folder.mkdir(exist_ok=True)
    content = {**SIZES, "architectures": ["DeepseekV3ForCausalLM"], **values}
    (folder / "config.json").write_text(json.dumps(content))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return ModelConfig.from_folder(folder)


@pytest.mark.parametrize("rope_type", ["type", "rope_type"])
def test_both_forms_of_a_file_give_one_configuration(rope_type: str) -> None:
    original = make_config(
        rope_theta=50_000, rope_scaling={rope_type: "yarn", **YARN}, torch_dtype="bfloat16",
        scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1,
    )  # fmt: skip
    new = make_config(rope_parameters={"rope_type": "yarn", "rope_theta": 50_000, **YARN}, dtype="bfloat16")
    assert original == new
    assert new.rope == RopeConfig("yarn", 50_000.0, 40.0, 4096, 32.0, 1.0, 0.707, 0.707)
    assert new.dtype == "bfloat16"


@pytest.mark.parametrize(
    "values",
    [
        {"rope_theta": 1234.0},
        {"rope_theta": 1234.0, "rope_scaling": None},
        {"rope_theta": 1234.0, "rope_scaling": {"type": "default"}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1234.0}},
        {"rope_parameters": {"rope_theta": 1234.0}, "rope_scaling": None},
    ],
)
def test_plain_rope_may_be_written_in_many_ways(values: dict[str, Any]) -> None:
    assert make_config(**values).rope == RopeConfig("default", 1234.0)


def test_nulls_and_absent_fields_mean_none() -> None:
    config = make_config(q_lora_rank=None, n_shared_experts=None, n_group=None, topk_group=None)
    assert (config.q_lora_rank, config.n_shared_experts, config.n_group, config.topk_group) == (None, 0, 1, 1)
    dense = make_config(V2, n_routed_experts=None, num_experts_per_tok=None, moe_intermediate_size=None)
    assert not any(dense.is_moe_layer(i) for i in range(3))


@pytest.mark.parametrize("first_k_dense_replace", [0, 1, 3])
def test_the_first_layers_are_dense(first_k_dense_replace: int) -> None:
    config = make_config(first_k_dense_replace=first_k_dense_replace)
    assert [config.is_moe_layer(i) for i in range(4)] == [i >= first_k_dense_replace for i in range(4)]


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [
        (1, None, (1,)),
        ([5, 1], {"eos_token_id": 7}, (1, 5, 7)),
        (None, {"eos_token_id": [2, 1]}, (1, 2)),
        (None, {}, ()),
    ],
)
def test_end_ids_are_the_union_of_both_files(
    tmp_path: Path, in_config: Any, in_generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    assert write(tmp_path, in_generation, eos_token_id=in_config).eos_token_ids == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"architectures": ["Llama"]}, 'architectures is ["Llama"]; allowed: one of DeepseekV2ForCausalLM, '),
        ({"architectures": None}, "architectures is []; allowed"),
        ({"hidden_act": "gelu"}, 'hidden_act is "gelu"; allowed: "silu"'),
        ({"rope_scaling": {"type": "linear"}}, 'rope_scaling.type is "linear"; allowed: "default" or "yarn"'),
        ({"rope_parameters": {"rope_type": "longrope"}}, 'rope_parameters.rope_type is "longrope"; allowed'),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"type": "yarn", **YARN, "truncate": False}}, "rope_scaling.truncate is false"),
        ({"rope_scaling": "yarn"}, 'rope_scaling is "yarn"; allowed: an object or null'),
        ({"rope_interleave": False}, "rope_interleave is false; allowed: true"),
        ({"topk_method": "greedy"}, 'topk_method is "greedy"; allowed: "noaux_tc"'),
        ({"scoring_func": "softmax"}, 'scoring_func is "softmax"; allowed: "sigmoid"'),
        ({"quantization_config": {"quant_method": "gptq"}}, 'quantization_config.quant_method is "gptq"'),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config.weight_block_size is []"),
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1; allowed: 3"),
        ({"hidden_size": "72"}, 'hidden_size is "72"; allowed: integers from 1'),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": 0}, "vocab_size is 0; allowed: integers from 1"),
        ({"vocab_size": True}, "vocab_size is true; allowed"),
        ({"qk_rope_head_dim": 15}, "qk_rope_head_dim is 15; allowed: even numbers"),
        ({"routed_scaling_factor": "x"}, 'routed_scaling_factor is "x"; allowed: a number'),
        ({"rope_theta": 0}, "rope_theta is 0; allowed: numbers above 0"),
        ({"attention_bias": "yes"}, 'attention_bias is "yes"; allowed: false or true'),
        ({"eos_token_id": 199}, "eos_token_id is 199; allowed: 0 to vocab_size - 1 = 198"),
        ({"eos_token_id": [1, -1]}, "eos_token_id is [1, -1]; allowed"),
        ({"n_group": 3}, "n_group is 3; allowed: divisors of n_routed_experts = 8"),
        ({"n_group": 2, "topk_group": 3}, "topk_group is 3; allowed: 1 to n_group = 2"),
        ({"n_group": 4, "topk_group": 1}, "num_experts_per_tok is 3; allowed: 1 to 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_in_one_sentence(
    tmp_path: Path, values: dict[str, Any], expected: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        write(tmp_path, **values)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'config.json'}: {expected}")
    assert "\n" not in message


def test_a_folder_without_a_readable_config_is_refused(tmp_path: Path) -> None:
    for content, expected in (
        (None, "does not exist"),
        ("{", "is not JSON"),
        ("[]", "holds list; allowed: a JSON object"),
    ):
        if content is not None:
            (tmp_path / "config.json").write_text(content)
        with pytest.raises(CheckpointError, match=expected):
            ModelConfig.from_folder(tmp_path)
    with pytest.raises(CheckpointError, match=r"nowhere does not exist"):
        ModelConfig.from_folder(tmp_path / "nowhere")
