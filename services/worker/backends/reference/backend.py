"""The reference backend: plain PyTorch on any device. What a faster backend must agree with."""

from torch import Tensor

from services.worker.backends.reference.attention_plan import AttentionPlan, plan_attention
from services.worker.backends.reference.mla import Mla
from services.worker.backends.reference.moe import Moe
from services.worker.model.backend import AttentionBlock, Backend, FeedForwardBlock
from services.worker.model.configuration import ModelConfig
from services.worker.model.input_batch import InputBatch
from services.worker.model.layers import Mlp, RmsNorm, Storage, Weights


class ReferenceAttention(AttentionBlock[AttentionPlan]):
    """Projections and cache write for the whole batch, then attention per sequence or group."""

    def __init__(self, config: ModelConfig, storage: Storage) -> None:
        self._norm = RmsNorm(config.hidden_size, config.rms_norm_eps, storage)
        self._mla = Mla(config, storage)
        self._heads_shape = (config.num_attention_heads, config.v_head_dim)

    def weights(self) -> Weights:
        return {**self._norm.weights("input_layernorm"), **self._mla.weights("self_attn")}

    def forward(self, hidden: Tensor, plan: AttentionPlan, cache_layer: Tensor) -> Tensor:
        x = self._norm(hidden)
        q_nope, q_pe = self._mla.project_query(x, plan.cos, plan.sin)
        cache_layer.index_copy_(0, plan.slot_mapping, self._mla.project_rows(x, plan.cos, plan.sin))
        heads = x.new_empty(len(x), *self._heads_shape)
        for sequence in plan.mha_sequences:
            rows = sequence.rows
            heads[rows] = self._mla.attend_mha(q_nope[rows], q_pe[rows], cache_layer, sequence.slots)
        for group in plan.mqa_groups:
            query = (q_nope[group.rows], q_pe[group.rows])
            heads[group.rows] = self._mla.attend_mqa(*query, cache_layer, group.slots, group.positions)
        return self._mla.project_output(heads, hidden)


class ReferenceFeedForward(FeedForwardBlock):
    def __init__(self, config: ModelConfig, layer_index: int, storage: Storage) -> None:
        self._norm = RmsNorm(config.hidden_size, config.rms_norm_eps, storage)
        if config.is_moe_layer(layer_index):
            self._mlp: Moe | Mlp = Moe(config, storage)
        else:
            self._mlp = Mlp(config.hidden_size, config.intermediate_size, storage)

    def weights(self) -> Weights:
        return {**self._norm.weights("post_attention_layernorm"), **self._mlp.weights("mlp")}

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self._mlp(self._norm(hidden))


class ReferenceBackend(Backend[AttentionPlan]):
    name = "reference"

    def attention_block(self, config: ModelConfig, storage: Storage) -> AttentionBlock[AttentionPlan]:
        return ReferenceAttention(config, storage)

    def feed_forward_block(self, config: ModelConfig, layer_index: int, storage: Storage) -> FeedForwardBlock:
        return ReferenceFeedForward(config, layer_index, storage)

    def plan(self, config: ModelConfig, batch: InputBatch, cos: Tensor, sin: Tensor) -> AttentionPlan:
        return plan_attention(config, batch, cos, sin)
