"""The interface of a backend: the two blocks of a layer, and what all layers of one step share.

It is cut at whole blocks, so that a native backend can fuse what is inside. Callers never branch on the
backend. A block includes the residual connection: it takes `hidden` [tokens, hidden_size] and returns it with
its own output added.
"""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from torch import Tensor

from services.worker.model.configuration import ModelConfig
from services.worker.model.input_batch import InputBatch
from services.worker.model.layers import Storage, Weights

# What a backend prepares once per step for all its attention blocks.
PlanT = TypeVar("PlanT")


class AttentionBlock(ABC, Generic[PlanT]):
    """One layer's attention: norm, projections, rope, cache write, attention, output projection."""

    @abstractmethod
    def weights(self) -> Weights:
        """The tensors that the loader fills, by the checkpoint's names below `model.layers.N.`."""

    @abstractmethod
    def forward(self, hidden: Tensor, plan: PlanT, cache_layer: Tensor) -> Tensor:
        """Writes the tokens' rows to `cache_layer` (KVCache.layer) and attends to all of each sequence."""


class FeedForwardBlock(ABC):
    """One layer's second half: norm, then the dense MLP or the experts."""

    @abstractmethod
    def weights(self) -> Weights:
        """As AttentionBlock.weights."""

    @abstractmethod
    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [tokens, hidden_size] -> the same shape; rows are independent."""


class Backend(ABC, Generic[PlanT]):
    # As in ModelInfo.backend.
    name: str

    @abstractmethod
    def attention_block(self, config: ModelConfig, storage: Storage) -> AttentionBlock[PlanT]:
        """An attention block, its weights still undefined."""

    @abstractmethod
    def feed_forward_block(self, config: ModelConfig, layer_index: int, storage: Storage) -> FeedForwardBlock:
        """A dense or MoE block, whichever this layer has, its weights still undefined."""

    @abstractmethod
    def plan(self, config: ModelConfig, batch: InputBatch, cos: Tensor, sin: Tensor) -> PlanT:
        """What every attention block of this step needs. cos and sin are `Rope.cos_sin` of its positions."""
