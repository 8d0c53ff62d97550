"""Deliberate faults in the pass and the sampler: mistakes that other people's systems shipped, or could have.

Each is one replacement in one file of services/worker. The text to replace occurs exactly once
(test_mutations.py), so that a change of the code cannot let a mutation fade into nothing.
"""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("services/worker")


@dataclass(frozen=True)
class Mutation:
    """What goes wrong, where, and how."""

    fault: str
    file: str
    old: str
    new: str

    @property
    def path(self) -> Path:
        """Below the repository's root."""
        return FOLDER / self.file


MUTATIONS = [
    # Attention.
    Mutation(
        "the mask of a suffix is aligned top-left, as is_causal does (mha)",
        "backends/reference/mla.py",
        "_hide_future(scores[:, :, num_seen:], context_len + first,",
        "_hide_future(scores[:, :, num_seen:], first,",
    ),
    Mutation(
        "no mask: a chunk sees its own future (mha)",
        "backends/reference/mla.py",
        "scores.masked_fill_(keys > queries[:, None]",
        "scores.masked_fill_(keys > keys[None]",
    ),
    Mutation(
        "a query does not see itself (mqa)",
        "backends/reference/mla.py",
        "is_hidden = (keys > positions[:, :, None])",
        "is_hidden = (keys >= positions[:, :, None].clamp(min=1))",
    ),
    Mutation(
        "a query sees one token too many (mqa)",
        "backends/reference/mla.py",
        "is_hidden = (keys > positions[:, :, None])",
        "is_hidden = (keys > positions[:, :, None] + 1)",
    ),
    Mutation(
        "the norm covers k_pe",
        "backends/reference/mla.py",
        "rotate(k_pe[:, None], cos, sin)[:, 0]), dim=-1)",
        "rotate(torch.nn.functional.rms_norm(k_pe, k_pe.shape[-1:])[:, None], cos, sin)[:, 0]), dim=-1)",
    ),
    Mutation(
        "the latent is cached before its norm",
        "backends/reference/mla.py",
        "torch.cat((self._kv_a_layernorm(kv_c), rotate(",
        "torch.cat((kv_c, rotate(",
    ),
    Mutation(
        "k_pe is cached before its rotation",
        "backends/reference/mla.py",
        "rotate(k_pe[:, None], cos, sin)[:, 0]), dim=-1)",
        "k_pe), dim=-1)",
    ),
    Mutation(
        "the inner norms take rms_norm_eps",
        "backends/reference/mla.py",
        "RmsNorm(config.kv_lora_rank, INNER_NORM_EPS, storage)",
        "RmsNorm(config.kv_lora_rank, config.rms_norm_eps, storage)",
    ),
    Mutation(
        "earlier tiles are not scaled down when a larger score comes",
        "backends/reference/mla.py",
        "shrink = (before - largest).exp()",
        "shrink = torch.ones_like(before)",
    ),
    Mutation(
        "sequences of a group swap their results",
        "backends/reference/backend.py",
        "heads[group.rows] = self._mla.attend_mqa(*query, cache_layer, group.slots, group.positions)",
        "heads[group.rows] = self._mla.attend_mqa(*query, cache_layer, group.slots, group.positions).flip(0)",
    ),
    Mutation(
        "a padded key is not the null slot but another sequence's",
        "backends/reference/attention_plan.py",
        "np.where(is_used, slots, NULL_BLOCK * batch.block_size)",
        "np.where(is_used, slots, slots.max())",
    ),
    # Scales and rope.
    Mutation(
        "YaRN's mscale is forgotten in the softmax scale",
        "model/rope.py",
        'if config.rope.rope_type == "yarn" and config.rope.mscale_all_dim:',
        "if False:",
    ),
    Mutation(
        "YaRN's mscale enters the softmax scale once",
        "model/rope.py",
        "config.rope.mscale_all_dim) ** 2",
        "config.rope.mscale_all_dim)",
    ),
    Mutation(
        "cos and sin are not divided by the scale of mscale_all_dim",
        "model/rope.py",
        "self._scale /= yarn_mscale(rope.factor, rope.mscale_all_dim)",
        "self._scale /= 1.0",
    ),
    Mutation(
        "the softmax scale leaves rope's dimensions out",
        "model/rope.py",
        "scale = config.qk_head_dim**-0.5",
        "scale = config.qk_nope_head_dim**-0.5",
    ),
    Mutation(
        "halves are rotated instead of adjacent pairs",
        "model/rope.py",
        "x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)",
        "x.unflatten(-1, (2, -1)).flip(-2).flatten(-2)",
    ),
    Mutation("YaRN's ramp is not rounded outwards", "model/rope.py", "math.floor(low)", "math.ceil(low)"),
    # Cache and batch.
    Mutation(
        "a slot off by one",
        "model/input_batch.py",
        "slot_mapping = blocks * block_size + positions % block_size",
        "slot_mapping = blocks * block_size + (positions + 1) % block_size",
    ),
    Mutation(
        "the first token of a block goes to the block before",
        "model/input_batch.py",
        "query_lens) + positions // block_size]",
        "query_lens) + (positions - 1).clip(0) // block_size]",
    ),
    Mutation(
        "stale block: the table of the sequence before",
        "model/input_batch.py",
        "table_starts = np.concatenate(([0], np.cumsum([len(table) for table in block_tables])[:-1]))",
        "table_starts = np.zeros(len(block_tables), dtype=np.int64)",
    ),
    Mutation(
        "positions begin at 0 in each chunk",
        "model/input_batch.py",
        "context_lens - query_start_loc[:-1], query_lens",
        "-query_start_loc[:-1], query_lens",
    ),
    Mutation(
        "blocks are not copied",
        "step/model_runner.py",
        "self._cache.copy_blocks([c.source_block_id for c in copies]",
        "self._cache.copy_blocks([c.target_block_id for c in copies]",
    ),
    Mutation(
        "all layers share the first one's cache",
        "model/deepseek.py",
        "hidden = attention.forward(hidden, plan, cache.layer(i))",
        "hidden = attention.forward(hidden, plan, cache.layer(0))",
    ),
    # Experts.
    Mutation(
        "the bias weighs as well as chooses",
        "backends/reference/moe.py",
        "scores.gather(1, ids)",
        "choice.gather(1, ids)",
    ),
    Mutation(
        "groups left out score 0 instead of -inf",
        "backends/reference/moe.py",
        "by_group.masked_fill(is_left_out[:, :, None], -torch.inf)",
        "by_group.masked_fill(is_left_out[:, :, None], 0.0)",
    ),
    Mutation(
        "a V3 group scores by its best alone",
        "backends/reference/moe.py",
        "num_best = min(2, by_group.shape[-1]) if self._is_v3 else 1",
        "num_best = 1",
    ),
    Mutation(
        "a V2 group scores by its two best",
        "backends/reference/moe.py",
        "num_best = min(2, by_group.shape[-1]) if self._is_v3 else 1",
        "num_best = min(2, by_group.shape[-1])",
    ),
    Mutation(
        "routed_scaling_factor is forgotten where weights are not normalised",
        "backends/reference/moe.py",
        "return weights * self._config.routed_scaling_factor",
        "return weights",
    ),
    Mutation(
        "unsorted groups: tokens do not follow their experts",
        "backends/reference/moe.py",
        "pairs_by_expert = ids.flatten().argsort()",
        "pairs_by_expert = torch.arange(ids.numel(), device=ids.device)",
    ),
    Mutation(
        "experts' outputs are not put back in order",
        "backends/reference/moe.py",
        "by_pair = torch.empty_like(outputs).index_copy_(0, pairs_by_expert, outputs)",
        "by_pair = outputs",
    ),
    Mutation(
        "the shared experts are left out",
        "backends/reference/moe.py",
        "routed + self._shared_experts(x)",
        "routed",
    ),
    Mutation(
        "gate and up are swapped",
        "model/layers.py",
        "gate, up = gate_up.chunk(2)",
        "up, gate = gate_up.chunk(2)",
    ),
    # Loading and choosing.
    Mutation("FP8 scales divide", "checkpoint/fp8.py", "rows.mul_(", "rows.div_("),
    Mutation(
        "an FP8 block's scale is that of its row of blocks alone",
        "checkpoint/fp8.py",
        "row_scale.repeat_interleave(block_size[1])[: weight.shape[1]]",
        "row_scale[0]",
    ),
    Mutation(
        "samples come from another sequence's row",
        "step/model_runner.py",
        "(starts[i] + sampling.query_index, sampling)",
        "(sampling.query_index, sampling)",
    ),
    Mutation(
        "prompt log-probabilities come from the token's own row",
        "step/model_runner.py",
        "_chunks(list(enumerate(predicted, start)), self._max_rows)",
        "_chunks(list(enumerate(predicted, start + 1)), self._max_rows)",
    ),
    Mutation(
        "top_p drops the token that crosses it",
        "sampling/sampler.py",
        "kept_by_top_p = (before < (draws.top_p * total)[:, None]).sum(-1)",
        "kept_by_top_p = (cumulative < (draws.top_p * total)[:, None]).sum(-1).clip(1)",
    ),
    Mutation(
        "the draw ignores how many tokens came before",
        "sampling/sampler.py",
        "u=uniform([step.seed for step in steps], [step.num_output_tokens for step in steps])",
        "u=uniform([step.seed for step in steps], [0 for step in steps])",
    ),
    Mutation(
        "the final norm is left out",
        "model/deepseek.py",
        "F.linear(self._norm(hidden), self._lm_head)",
        "F.linear(hidden, self._lm_head)",
    ),
]
