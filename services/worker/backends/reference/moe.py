"""Mixture of experts: the router, and each expert's MLP, once over all of its tokens.

The router computes in fp32 whatever the model's dtype, as DeepSeek's code does. With a score s per expert:

    V2 (arXiv:2405.04434, §2.2)   s = softmax(x W^T); the weight of a chosen expert is its s
        greedy                    the num_experts_per_tok largest
        group_limited_greedy      the same, from the topk_group groups with the largest maximum
    V3 (arXiv:2412.19437, §2.1.2) s = sigmoid(x W^T), c = s + e_score_correction_bias
        noaux_tc                  the largest c, from the topk_group groups whose two best c sum to the most;
                                  the bias chooses but does not weigh: the weight is s

Experts of groups left out get -inf, not 0: a bias may make every c negative. If norm_topk_prob, and there are
several, a token's weights are divided by their sum (transformers 5.24 divides a single one too; no published
model has one). routed_scaling_factor multiplies them, but in V2's code not if they were normalised
(transformers 5.24 ignores norm_topk_prob in V2; no published V2 sets it).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.model.configuration import ModelConfig
from services.worker.model.layers import Mlp, Storage, Weights, swiglu, swiglu_weights


class Router:
    """Chooses num_experts_per_tok experts for each token, and their weights."""

    def __init__(self, config: ModelConfig, storage: Storage) -> None:
        self._config = config
        self._is_v3 = config.topk_method == "noaux_tc"
        fp32 = Storage(torch.float32, storage.device)
        self._weight = fp32.empty(config.n_routed_experts, config.hidden_size)
        self._bias = fp32.empty(config.n_routed_experts) if self._is_v3 else None

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [tokens, hidden] -> ids int64, weights fp32; both [tokens, num_experts_per_tok], in no order."""
        logits = F.linear(x.float(), self._weight)
        scores = logits.softmax(-1) if self._bias is None else logits.sigmoid()
        choice = scores if self._bias is None else scores + self._bias
        if self._config.topk_method != "greedy" and self._config.topk_group < self._config.n_group:
            choice = self._without_other_groups(choice)
        ids = choice.topk(self._config.num_experts_per_tok, sorted=False).indices
        return ids, self._scaled(scores.gather(1, ids))

    def weights(self, name: str) -> Weights:
        biases = {} if self._bias is None else {f"{name}.e_score_correction_bias": self._bias}
        return {f"{name}.weight": self._weight, **biases}

    def _without_other_groups(self, choice: Tensor) -> Tensor:
        """choice [tokens, experts], with -inf for the experts of all but the best topk_group groups."""
        by_group = choice.unflatten(1, (self._config.n_group, -1))
        num_best = min(2, by_group.shape[-1]) if self._is_v3 else 1
        group_scores = by_group.topk(num_best).values.sum(-1)
        kept = group_scores.topk(self._config.topk_group, sorted=False).indices
        is_left_out = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, kept, False)
        return by_group.masked_fill(is_left_out[:, :, None], -torch.inf).flatten(1)

    def _scaled(self, weights: Tensor) -> Tensor:
        if not self._config.norm_topk_prob or self._config.num_experts_per_tok == 1:
            return weights * self._config.routed_scaling_factor
        factor = self._config.routed_scaling_factor if self._is_v3 else 1.0
        return weights * (factor / (weights.sum(-1, keepdim=True) + 1e-20))


class Experts:
    """All routed experts of a layer, stacked: gate_up [experts, 2 × intermediate, hidden], down likewise."""

    def __init__(self, config: ModelConfig, storage: Storage) -> None:
        num, hidden, inner = config.n_routed_experts, config.hidden_size, config.moe_intermediate_size
        self._gate_up = storage.empty(num, 2 * inner, hidden)
        self._down = storage.empty(num, hidden, inner)

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """x [tokens, hidden], ids and weights [tokens, k] -> the weighted sum of each token's k experts.

        Pairs of token and choice are sorted by expert, so that each expert has one matmul for all its tokens.
        The sum over a token's k rows is in fp32, as in DeepSeek's code.
        """
        num_tokens, k = ids.shape
        pairs_by_expert = ids.flatten().argsort()
        counts = torch.bincount(ids.flatten(), minlength=len(self._down)).tolist()
        inputs = x.index_select(0, pairs_by_expert // k)
        outputs = x.new_empty(num_tokens * k, x.shape[1])
        end = 0
        for expert, count in enumerate(counts):
            if count:
                start, end = end, end + count
                outputs[start:end] = swiglu(inputs[start:end], self._gate_up[expert], self._down[expert])
        by_pair = torch.empty_like(outputs).index_copy_(0, pairs_by_expert, outputs)
        sum_dtype = torch.promote_types(x.dtype, weights.dtype)
        by_token = by_pair.unflatten(0, (num_tokens, k)).to(sum_dtype)
        return torch.bmm(weights.to(sum_dtype)[:, None], by_token)[:, 0].to(x.dtype)

    def weights(self, name: str) -> Weights:
        stacked = zip(self._gate_up, self._down, strict=True)
        return {
            key: tensor
            for expert, (gate_up, down) in enumerate(stacked)
            for key, tensor in swiglu_weights(f"{name}.{expert}", gate_up, down).items()
        }


class Moe:
    """The routed experts, and the shared ones, which are one dense MLP."""

    def __init__(self, config: ModelConfig, storage: Storage) -> None:
        self._gate = Router(config, storage)
        self._experts = Experts(config, storage)
        shared_size = config.n_shared_experts * config.moe_intermediate_size
        self._shared_experts = Mlp(config.hidden_size, shared_size, storage) if shared_size else None

    def __call__(self, x: Tensor) -> Tensor:
        routed = self._experts(x, *self._gate(x))
        return routed if self._shared_experts is None else routed + self._shared_experts(x)

    def weights(self, name: str) -> Weights:
        shared = self._shared_experts.weights(f"{name}.shared_experts") if self._shared_experts else {}
        return {**self._gate.weights(f"{name}.gate"), **self._experts.weights(f"{name}.experts"), **shared}
