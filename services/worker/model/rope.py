"""Rotary position embedding (rope), plain and YaRN, on adjacent pairs.

DeepSeek's checkpoints rotate adjacent pairs (x[2i], x[2i+1]) by the angle position × inv_freq[i] (RoFormer,
arXiv:2104.09864, eq. 34). Queries and the cached k_pe keep this layout; transformers' V3 de-interleaves both
first, the same permutation of q and k, which changes no product q·k.

YaRN (arXiv:2309.00071, §3.2) divides low frequencies by `factor` and leaves high ones. It has two scales
here, both from DeepSeek's own code, with m(s, k) = 0.1·k·ln s + 1 (and 1 for s <= 1):

    cos and sin   × m(factor, mscale) / m(factor, mscale_all_dim)
    softmax scale = qk_head_dim^-0.5 × m(factor, mscale_all_dim)², only if mscale_all_dim is not 0

transformers 5.24 differs in one case: with mscale set and mscale_all_dim unset it ignores mscale.
"""

import math

import torch
from torch import Tensor

from services.worker.model.configuration import ModelConfig, RopeConfig


def yarn_mscale(factor: float, mscale: float) -> float:
    """m(factor, mscale) above."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def softmax_scale(config: ModelConfig) -> float:
    """The factor of q·k, over nope + rope dimensions, in the absorbed form too."""
    scale = config.qk_head_dim**-0.5
    if config.rope.rope_type == "yarn" and config.rope.mscale_all_dim:
        scale *= yarn_mscale(config.rope.factor, config.rope.mscale_all_dim) ** 2
    return scale


class Rope:
    """Computed in fp32, as the model was trained, and as transformers does."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        rope = config.rope
        self._inv_freq = _inv_freq(rope, config.qk_rope_head_dim).to(device)
        self._scale = 1.0
        if rope.rope_type == "yarn":
            self._scale = yarn_mscale(rope.factor, rope.mscale)
            self._scale /= yarn_mscale(rope.factor, rope.mscale_all_dim)

    def cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [tokens] -> cos, sin [tokens, 1, qk_rope_head_dim] for `rotate`; sin has its signs."""
        angles = positions[:, None].float() * self._inv_freq
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
        interleaved = (torch.stack((cos, cos), -1), torch.stack((-sin, sin), -1))
        return interleaved[0].flatten(1)[:, None], interleaved[1].flatten(1)[:, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [tokens, heads, qk_rope_head_dim]: each pair (a, b) becomes (a·cos - b·sin, b·cos + a·sin)."""
    pairs_swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.addcmul(x * cos, pairs_swapped, sin).to(x.dtype)


def _inv_freq(rope: RopeConfig, dim: int) -> Tensor:
    """Angle per position of each pair, [dim / 2], fp32."""
    plain = 1.0 / rope.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if rope.rope_type == "default":
        return plain
    low, high = (_pair_of(rotations, rope, dim) for rotations in (rope.beta_fast, rope.beta_slow))
    first, last = max(math.floor(low), 0), min(math.ceil(high), dim - 1)
    span = last - first or 0.001
    stretched_share = ((torch.arange(dim // 2, dtype=torch.float32) - first) / span).clamp(0, 1)
    return plain / rope.factor * stretched_share + plain * (1 - stretched_share)


def _pair_of(rotations: float, rope: RopeConfig, dim: int) -> float:
    """The pair (not rounded) with so many rotations in the original context: YaRN's r(d), solved for d."""
    turns = rope.original_max_position_embeddings / (rotations * 2 * math.pi)
    return dim * math.log(turns) / (2 * math.log(rope.rope_theta))
