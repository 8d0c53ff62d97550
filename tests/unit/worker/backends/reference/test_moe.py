"""The router against a reference of twenty lines in fp64; the experts against one token at a time."""

import numpy as np
import pytest
import torch

from services.worker.backends.reference.moe import Experts, Moe, Router
from services.worker.model.configuration import ModelConfig
from services.worker.model.layers import Storage, swiglu
from tests.unit.worker.model.configs import make_config

CPU = torch.device("cpu")
FP32 = Storage(torch.float32, CPU)
V2, V3 = "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"


def reference(config: ModelConfig, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> dict[int, float]:
    """One token's experts and their weights, as DeepSeek's MoEGate computes them."""
    logits = x @ weight.T
    is_v3 = config.topk_method == "noaux_tc"
    scores = 1 / (1 + np.exp(-logits)) if is_v3 else np.exp(logits - logits.max())
    scores = scores if is_v3 else scores / scores.sum()
    choice = scores + bias if is_v3 else scores.copy()
    if config.topk_method != "greedy":
        groups = choice.reshape(config.n_group, -1)
        best = np.sort(groups, axis=1)[:, ::-1]
        group_scores = best[:, :2].sum(1) if is_v3 else best[:, 0]
        for group in np.argsort(-group_scores)[config.topk_group :]:
            groups[group] = -np.inf
    chosen = np.argsort(-choice)[: config.num_experts_per_tok]
    weights = scores[chosen]
    if config.norm_topk_prob and config.num_experts_per_tok > 1:
        weights = weights / (weights.sum() + 1e-20)
        weights = weights * config.routed_scaling_factor if is_v3 else weights
    else:
        weights = weights * config.routed_scaling_factor
    return dict(zip(chosen.tolist(), weights.tolist(), strict=True))


CASES = [
    make_config(V2, topk_method="greedy", routed_scaling_factor=3.0),
    make_config(V2, topk_method="greedy", norm_topk_prob=True, routed_scaling_factor=3.0),
    make_config(V2, topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=16.0),
    make_config(V3, norm_topk_prob=True, routed_scaling_factor=2.5),
    make_config(V3, norm_topk_prob=False, routed_scaling_factor=2.5),
    make_config(V3, n_routed_experts=32, n_group=8, topk_group=3, norm_topk_prob=True, num_experts_per_tok=6),
    make_config(V3, n_group=8, topk_group=4, num_experts_per_tok=1),
]


@pytest.mark.parametrize("bias_scale", [0.0, 0.5, 100.0])
@pytest.mark.parametrize("config", CASES, ids=lambda c: f"{c.architecture[8:10]}-{c.topk_method}-{c.n_group}")
def test_the_router_chooses_and_weighs_as_the_reference(config: ModelConfig, bias_scale: float) -> None:
    generator = torch.Generator().manual_seed(7)
    router = Router(config, FP32)
    for tensor in router.weights("gate").values():
        tensor.copy_(
            torch.randn(tensor.shape, generator=generator) * (bias_scale if tensor.ndim == 1 else 0.3)
        )
    x = torch.randn(64, config.hidden_size, generator=generator)
    ids, weights = router(x)
    tensors = {name: tensor.double().numpy() for name, tensor in router.weights("gate").items()}
    bias = tensors.get("gate.e_score_correction_bias", np.zeros(config.n_routed_experts))
    for i in range(len(x)):
        expected = reference(config, x[i].double().numpy(), tensors["gate.weight"], bias)
        assert dict(zip(ids[i].tolist(), weights[i].tolist(), strict=True)) == pytest.approx(
            expected, rel=1e-4
        )


def test_groups_left_out_stay_out_when_a_bias_makes_every_score_negative() -> None:
    config = make_config(V3, n_group=4, topk_group=1, num_experts_per_tok=2)
    router = Router(config, FP32)
    tensors = router.weights("gate")
    tensors["gate.weight"].zero_()
    tensors["gate.e_score_correction_bias"].copy_(torch.tensor([-9.0, -9, -5, -50, -9, -9, -9, -9]))
    ids, _ = router(torch.zeros(1, config.hidden_size))
    assert set(ids[0].tolist()) == {0, 1} or set(ids[0].tolist()) == {4, 5} or set(ids[0].tolist()) == {6, 7}


def test_ties_choose_distinct_experts_of_equal_weight() -> None:
    config = make_config(V3, norm_topk_prob=True, routed_scaling_factor=1.0)
    router = Router(config, FP32)
    for tensor in router.weights("gate").values():
        tensor.zero_()
    ids, weights = router(torch.ones(3, config.hidden_size))
    assert all(len(set(row)) == config.num_experts_per_tok for row in ids.tolist())
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / 3))


def test_the_router_stays_in_fp32() -> None:
    config = make_config(V3)
    router = Router(config, FP32)
    assert all(tensor.dtype == torch.float32 for tensor in router.weights("gate").values())
    for tensor in router.weights("gate").values():
        tensor.copy_(torch.randn(tensor.shape))
    assert router(torch.randn(4, config.hidden_size).bfloat16())[1].dtype == torch.float32


def test_experts_give_each_token_the_weighted_sum_of_its_own() -> None:
    config = make_config(V3)
    experts = Experts(config, Storage(torch.float64, CPU))
    tensors = experts.weights("experts")
    for tensor in tensors.values():
        tensor.copy_(torch.randn(tensor.shape, dtype=torch.float64) * 0.2)
    x = torch.randn(11, config.hidden_size, dtype=torch.float64)
    ids = torch.stack([torch.randperm(config.n_routed_experts)[:3] for _ in range(11)])
    # One expert gets no token, another gets all.
    ids[ids == 5] = 6
    weights = torch.rand(11, 3)
    result = experts(x, ids, weights)
    for token in range(11):
        expected = torch.zeros(config.hidden_size, dtype=torch.float64)
        for expert, weight in zip(ids[token].tolist(), weights[token], strict=True):
            gate, up, down = (
                tensors[f"experts.{expert}.{part}_proj.weight"] for part in ("gate", "up", "down")
            )
            expected += weight.double() * swiglu(x[token], torch.cat((gate, up)), down)
        torch.testing.assert_close(result[token], expected)


def test_a_layer_without_shared_experts_has_none() -> None:
    moe = Moe(make_config(V3, n_shared_experts=None), FP32)
    assert not [name for name in moe.weights("mlp") if "shared" in name]
