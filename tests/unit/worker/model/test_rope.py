"""Rotation and YaRN against references of a few lines in fp64, from DeepSeek's own code."""

import math

import numpy as np
import pytest
import torch

from services.worker.model.configuration import RopeConfig
from services.worker.model.rope import Rope, rotate
from tests.unit.worker.model.configs import make_config

CPU = torch.device("cpu")
YARN = {
    "rope_type": "yarn",
    "rope_theta": 50_000.0,
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.8,
    "mscale_all_dim": 0.5,
}


def reference_angles(rope: RopeConfig, dim: int) -> np.ndarray:
    """DeepseekV3YarnRotaryEmbedding in fp64: the angle per position of each pair."""
    i = np.arange(0, dim, 2, dtype=np.float64)
    plain = rope.rope_theta ** (-i / dim)
    if rope.rope_type == "default":
        return plain

    def correction_dim(rotations: float) -> float:
        turns = rope.original_max_position_embeddings / (rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(rope.rope_theta))

    low = max(math.floor(correction_dim(rope.beta_fast)), 0)
    high: float = min(math.ceil(correction_dim(rope.beta_slow)), dim - 1)
    high = high + 0.001 if low == high else high
    mask = 1 - ((np.arange(dim // 2) - low) / (high - low)).clip(0, 1)
    return plain / rope.factor * (1 - mask) + plain * mask


def mscale(factor: float, value: float) -> float:
    return 0.1 * value * math.log(factor) + 1


@pytest.mark.parametrize(
    "rope_parameters",
    [
        {"rope_theta": 10_000.0},
        YARN,
        {**YARN, "beta_fast": 1, "beta_slow": 1},
        {**YARN, "mscale_all_dim": 0.0},
    ],
    ids=["plain", "yarn", "one beta", "no mscale_all_dim"],
)
@pytest.mark.parametrize("dim", [2, 16, 64])
def test_pairs_turn_by_the_reference_angle(rope_parameters: dict[str, float], dim: int) -> None:
    config = make_config(qk_rope_head_dim=dim, rope_parameters=rope_parameters)
    positions = torch.tensor([0, 1, 5, 300])
    x = torch.randn(4, 3, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rotated = rotate(x, *Rope(config, CPU).cos_sin(positions))
    angles = positions.numpy()[:, None] * reference_angles(config.rope, dim)
    pairs = x.numpy()[..., 0::2] + 1j * x.numpy()[..., 1::2]
    scale = 1.0
    if config.rope.rope_type == "yarn":
        # An mscale_all_dim of 0 makes the divisor 1: transformers would ignore mscale here.
        scale = mscale(32.0, config.rope.mscale) / mscale(32.0, config.rope.mscale_all_dim)
    expected = pairs * np.exp(1j * angles)[:, None] * scale
    np.testing.assert_allclose(rotated[..., 0::2].numpy(), expected.real, atol=2e-4)
    np.testing.assert_allclose(rotated[..., 1::2].numpy(), expected.imag, atol=2e-4)


def test_a_rotation_keeps_the_type_and_works_in_fp32() -> None:
    config = make_config()
    x = torch.randn(2, 1, 16).bfloat16()
    cos, sin = Rope(config, CPU).cos_sin(torch.tensor([0, 499]))
    assert cos.dtype == torch.float32
    rotated = rotate(x, cos, sin)
    assert rotated.dtype == torch.bfloat16
    assert torch.equal(rotated, rotate(x.float(), cos, sin).bfloat16())


def test_products_depend_on_the_distance_alone() -> None:
    config = make_config(rope_parameters=YARN)
    rope = Rope(config, CPU)
    q, k = torch.randn(2, 1, 1, 16, dtype=torch.float64)
    at = [
        (rotate(q, *rope.cos_sin(torch.tensor([7 + s]))) * rotate(k, *rope.cos_sin(torch.tensor([s])))).sum()
        for s in (0, 90)
    ]
    torch.testing.assert_close(at[0], at[1], rtol=1e-4, atol=1e-5)
