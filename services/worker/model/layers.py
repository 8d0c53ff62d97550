"""Linear layer, norm and MLP, as every architecture uses them."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# The tensors that the loader fills, by name: it checks their shapes and copies into them.
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Storage:
    """The dtype of a model's tensors, and their device."""

    dtype: torch.dtype
    device: torch.device

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)


class Linear:
    """y = x weightᵀ + bias, with `weight` [out, in] and `bias` [out]."""

    def __init__(self, in_size: int, out_size: int, storage: Storage, *, bias: bool = False) -> None:
        self.weight = storage.empty(out_size, in_size)
        self.bias = storage.empty(out_size) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def weights(self, name: str) -> Weights:
        biases = {} if self.bias is None else {f"{name}.bias": self.bias}
        return {f"{name}.weight": self.weight, **biases}


class RmsNorm:
    """x / rms(x) × weight over the last dimension, the quotient in fp32 (arXiv:1910.07467)."""

    def __init__(self, size: int, eps: float, storage: Storage) -> None:
        self.weight = storage.empty(size)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self._eps)

    def weights(self, name: str) -> Weights:
        return {f"{name}.weight": self.weight}


class Mlp:
    """down_proj(silu(gate_proj(x)) × up_proj(x)) (SwiGLU, arXiv:2002.05202).

    The two input projections are one matrix, `gate_up` [2 × intermediate, hidden]: one matmul for both.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, storage: Storage) -> None:
        self._gate_up = storage.empty(2 * intermediate_size, hidden_size)
        self._down = storage.empty(hidden_size, intermediate_size)

    def __call__(self, x: Tensor) -> Tensor:
        return swiglu(x, self._gate_up, self._down)

    def weights(self, name: str) -> Weights:
        return swiglu_weights(name, self._gate_up, self._down)


def swiglu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """x [tokens, hidden], gate_up [2 × inner, hidden], down [hidden, inner] -> [tokens, hidden]."""
    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate).mul_(up), down)


def swiglu_weights(name: str, gate_up: Tensor, down: Tensor) -> Weights:
    """The checkpoint's three matrices as views of `swiglu`'s two."""
    gate, up = gate_up.chunk(2)
    return {f"{name}.gate_proj.weight": gate, f"{name}.up_proj.weight": up, f"{name}.down_proj.weight": down}
