"""Backends whose attention is wrong: in the ways that were seen on Apple's MPS (pitfall M10), and subtly."""

from collections.abc import Callable

import torch
from torch import Tensor

from services.worker.backends.reference.attention_plan import AttentionPlan
from services.worker.backends.reference.backend import ReferenceAttention, ReferenceBackend
from services.worker.model.configuration import ModelConfig
from services.worker.model.layers import Storage

Break = Callable[[Tensor, Tensor, AttentionPlan], Tensor]


class BrokenBackend(ReferenceBackend):
    """The reference, with something done to each attention block's result."""

    def __init__(self, break_attention: Break) -> None:
        self._break = break_attention

    def attention_block(self, config: ModelConfig, storage: Storage) -> ReferenceAttention:
        """A block that breaks its result."""
        break_attention = self._break

        class BrokenAttention(ReferenceAttention):
            def forward(self, hidden: Tensor, plan: AttentionPlan, cache_layer: Tensor) -> Tensor:
                return break_attention(super().forward(hidden, plan, cache_layer), hidden, plan)

        return BrokenAttention(config, storage)


def leak_the_future(result: Tensor, hidden: Tensor, plan: AttentionPlan) -> Tensor:
    """A little of each next token's result reaches the one before, in whole prompts only."""
    if not plan.mha_sequences:
        return result
    rows = plan.mha_sequences[0].rows
    leaked = result.clone()
    leaked[rows] += 0.3 * (result[rows].roll(-1, 0) - result[rows])
    return leaked


def lose_a_decode(result: Tensor, hidden: Tensor, plan: AttentionPlan) -> Tensor:
    """Where sequences are decoded together, the last one's attention is lost."""
    if any(len(group.slots) > 1 for group in plan.mqa_groups):
        result = result.clone()
        result[-1] = hidden[-1]
    return result


def give_nan(result: Tensor, hidden: Tensor, plan: AttentionPlan) -> Tensor:
    """NaN in one row, as for one that is masked altogether."""
    result = result.clone()
    result[-1] = torch.nan
    return result


def give_another_width(result: Tensor, hidden: Tensor, plan: AttentionPlan) -> Tensor:
    """As wide as keys, not as values."""
    return result[:, :-1]


def weaken(result: Tensor, hidden: Tensor, plan: AttentionPlan) -> Tensor:
    """What attention adds is 2 % too small: log-probabilities differ, and rarely a token."""
    return torch.lerp(hidden, result, 0.98)


# What the self-test of a device must refuse.
BROKEN: dict[str, Break] = {
    "a causal leak": leak_the_future,
    "a lost decode": lose_a_decode,
    "NaN": give_nan,
    "another width": give_another_width,
}
