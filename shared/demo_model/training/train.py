"""Train the demo model on CPU and write it as a Hugging Face checkpoint folder.

    python -m shared.demo_model.training.train --out DIR

Seeded: the same steps on the same machine give the same result, unless the time limit cuts them short. The
forward pass is our own, for speed: fp32, and an expert runs on its own tokens only; the tests compare it with
transformers'. All that needs torch is in this one file, the only one of `shared` that may import it.
"""

import argparse
import json
import math
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from shared.demo_model import PATH
from shared.demo_model.training.rows import EOS, PAD, Rows, train_tokenizer

COPIED = ("config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja")
Config = dict[str, Any]  # config.json: the architecture is read from the committed checkpoint


# -------- forward pass


class _Dispatch(torch.autograd.Function):
    """Tokens to (token, expert) pairs ordered by expert: [tokens, hidden] -> [tokens * k, hidden].

    The gradient gathers by the inverse order and sums k neighbours, which is faster than index_add.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, pair_token: Tensor, pair_rank: Tensor) -> Tensor:
        ctx.save_for_backward(pair_rank)
        ctx.num_tokens = hidden.shape[0]
        return hidden.index_select(0, pair_token)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (pair_rank,) = ctx.saved_tensors
        pairs = gradients[0].index_select(0, pair_rank)
        return pairs.view(ctx.num_tokens, -1, pairs.shape[-1]).sum(1), None, None


class _Combine(torch.autograd.Function):
    """The way back: [tokens * k, hidden] ordered by expert -> [tokens, hidden], k outputs summed."""

    @staticmethod
    def forward(ctx: Any, pairs: Tensor, pair_token: Tensor, pair_rank: Tensor, top_k: int) -> Tensor:
        ctx.save_for_backward(pair_token)
        return pairs.index_select(0, pair_rank).view(-1, top_k, pairs.shape[-1]).sum(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (pair_token,) = ctx.saved_tensors
        return gradients[0].index_select(0, pair_token), None, None, None


def _dispatch(hidden: Tensor, pair_token: Tensor, pair_rank: Tensor) -> Tensor:
    pairs: Tensor = _Dispatch.apply(hidden, pair_token, pair_rank)
    return pairs


def _combine(pairs: Tensor, pair_token: Tensor, pair_rank: Tensor, top_k: int) -> Tensor:
    hidden: Tensor = _Combine.apply(pairs, pair_token, pair_rank, top_k)
    return hidden


def _matrix(*shape: int) -> nn.Parameter:
    """[..., out, in], normal with variance 1 / in."""
    return nn.Parameter(torch.randn(*shape) / math.sqrt(shape[-1]))


def _rope(pairs: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate interleaved pairs: [..., tokens, dim] by [tokens, dim / 2]."""
    even, odd = pairs[..., 0::2], pairs[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


def _norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dimension."""
    return F.rms_norm(hidden, weight.shape, weight, eps)


def _swiglu(hidden: Tensor, gate_up: Tensor, down: Tensor, scale: Tensor | None = None) -> Tensor:
    gate, up = F.linear(hidden, gate_up).chunk(2, -1)
    inner = F.silu(gate) * up
    return F.linear(inner if scale is None else inner * scale, down)


class Attention(nn.Module):
    """Multi-head Latent Attention, keys and values materialised (DeepSeek-V2, arXiv 2405.04434, 2.1)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        self.heads, self.eps = heads, config["rms_norm_eps"]
        self.nope, self.rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        self.value, self.kv_rank = config["v_head_dim"], config["kv_lora_rank"]
        self.q_a_proj = _matrix(config["q_lora_rank"], hidden)
        self.q_a_layernorm = nn.Parameter(torch.ones(config["q_lora_rank"]))
        self.q_b_proj = _matrix(heads * (self.nope + self.rope), config["q_lora_rank"])
        self.kv_a_proj_with_mqa = _matrix(self.kv_rank + self.rope, hidden)
        self.kv_a_layernorm = nn.Parameter(torch.ones(self.kv_rank))
        self.kv_b_proj = _matrix(heads * (self.nope + self.value), self.kv_rank)
        self.o_proj = nn.Parameter(torch.zeros(hidden, heads * self.value))

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[rows, tokens, hidden] -> the same."""
        rows, tokens, _ = hidden.shape
        q_a = _norm(F.linear(hidden, self.q_a_proj), self.q_a_layernorm, self.eps)
        query = F.linear(q_a, self.q_b_proj).view(rows, tokens, self.heads, -1).transpose(1, 2)
        q_nope, q_pe = torch.split(query, [self.nope, self.rope], -1)
        kv_c, k_pe = torch.split(F.linear(hidden, self.kv_a_proj_with_mqa), [self.kv_rank, self.rope], -1)
        kv_c_normed = _norm(kv_c, self.kv_a_layernorm, self.eps)
        key_value = F.linear(kv_c_normed, self.kv_b_proj).view(rows, tokens, self.heads, -1).transpose(1, 2)
        k_nope, value = torch.split(key_value, [self.nope, self.value], -1)
        k_pe = _rope(k_pe, cos, sin)[:, None].expand(rows, self.heads, tokens, self.rope)
        # The fused kernel wants one head size for all three: the value is padded and cut again.
        attended = F.scaled_dot_product_attention(
            torch.cat([q_nope, _rope(q_pe, cos, sin)], -1),
            torch.cat([k_nope, k_pe], -1),
            F.pad(value, (0, self.nope + self.rope - self.value)),
            is_causal=True,
        )[..., : self.value]
        return F.linear(attended.transpose(1, 2).reshape(rows, tokens, -1), self.o_proj)


class DenseMlp(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_up_proj = _matrix(2 * intermediate, hidden)
        self.down_proj = nn.Parameter(torch.zeros(hidden, intermediate))

    def forward(self, hidden: Tensor) -> Tensor:
        return _swiglu(hidden, self.gate_up_proj, self.down_proj)


class MoE(nn.Module):
    """Routed experts and one shared one (DeepSeek-V3, arXiv 2412.19437, 2.1.2)."""

    e_score_correction_bias: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, intermediate = config["hidden_size"], config["moe_intermediate_size"]
        self.experts, self.top_k = config["n_routed_experts"], config["num_experts_per_tok"]
        self.groups, self.top_k_groups = config["n_group"], config["topk_group"]
        self.scaling = config["routed_scaling_factor"]
        self.shared_experts = DenseMlp(hidden, intermediate * config["n_shared_experts"])
        self.gate = _matrix(self.experts, hidden)
        self.gate_up_proj = _matrix(self.experts, 2 * intermediate, hidden)
        self.down_proj = nn.Parameter(_matrix(self.experts, hidden, intermediate).detach() * 0.1)
        self.register_buffer("e_score_correction_bias", torch.zeros(self.experts))
        self.last_load = torch.zeros(self.experts)  # pairs that each expert got in the last forward pass

    def forward(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] -> the same."""
        scores = F.linear(hidden, self.gate).sigmoid()
        with torch.no_grad():
            expert = self._choose(scores)
            order = expert.view(-1).argsort(stable=True)  # pairs by expert, then by token
            pair_rank = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel()))
            pair_token = order // self.top_k
            load = expert.view(-1).bincount(minlength=self.experts)
            self.last_load = load.float()
        weight = scores.gather(1, expert)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * self.scaling
        sizes = load.tolist()
        weights = weight.view(-1, 1).index_select(0, order).split(sizes)
        inputs = torch.split(_dispatch(hidden, pair_token, pair_rank), sizes)
        matrices = zip(self.gate_up_proj, self.down_proj, strict=True)
        outputs = [
            _swiglu(own, gate_up, down, scale)
            for own, scale, (gate_up, down) in zip(inputs, weights, matrices, strict=True)
        ]
        shared: Tensor = self.shared_experts(hidden)
        return shared + _combine(torch.cat(outputs), pair_token, pair_rank, self.top_k)

    def _choose(self, scores: Tensor) -> Tensor:
        """[tokens, experts] scores -> [tokens, top_k] experts, all from the best groups by biased score."""
        biased = scores + self.e_score_correction_bias
        group_score = biased.view(-1, self.groups, self.experts // self.groups).topk(2, -1).values.sum(-1)
        best_groups = group_score.topk(self.top_k_groups, -1).indices
        allowed = torch.zeros_like(group_score).scatter_(1, best_groups, 1)
        allowed = allowed.repeat_interleave(self.experts // self.groups, 1)
        return torch.topk(biased.masked_fill(allowed == 0, -math.inf), self.top_k, -1).indices


class Layer(nn.Module):
    def __init__(self, config: Config, index: int) -> None:
        super().__init__()
        hidden, self.eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm = nn.Parameter(torch.ones(hidden))
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.Parameter(torch.ones(hidden))
        is_dense = index < config["first_k_dense_replace"]
        self.mlp: DenseMlp | MoE = DenseMlp(hidden, config["intermediate_size"]) if is_dense else MoE(config)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        hidden = hidden + self.self_attn(_norm(hidden, self.input_layernorm, self.eps), cos, sin)
        normed = _norm(hidden, self.post_attention_layernorm, self.eps)
        changed: Tensor = self.mlp(normed.flatten(0, 1))
        return hidden + changed.view_as(hidden)


class Model(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, self.eps = config["hidden_size"], config["rms_norm_eps"]
        self.embed_tokens = nn.Parameter(torch.randn(config["vocab_size"], hidden) * 0.5)
        self.layer_list = [Layer(config, index) for index in range(config["num_hidden_layers"])]
        self.layers = nn.ModuleList(self.layer_list)  # the same, registered
        self.norm = nn.Parameter(torch.ones(hidden))
        self.lm_head = nn.Parameter(self.embed_tokens.detach() / math.sqrt(hidden))  # alike at first only
        dim, positions = config["qk_rope_head_dim"], torch.arange(config["max_position_embeddings"]).float()
        angles = torch.outer(positions, config["rope_theta"] ** (-torch.arange(0, dim, 2) / dim))
        self.cos, self.sin = angles.cos(), angles.sin()  # [positions, dim / 2]

    def forward(self, input_ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """[rows, tokens] -> logits [n, vocab] at n flat positions (row * tokens + token), or at all."""
        hidden = F.embedding(input_ids, self.embed_tokens)
        tokens = input_ids.shape[1]
        for layer in self.layer_list:
            hidden = layer(hidden, self.cos[:tokens], self.sin[:tokens])
        hidden = _norm(hidden, self.norm, self.eps).flatten(0, 1)
        return F.linear(hidden if positions is None else hidden.index_select(0, positions), self.lm_head)

    def moe_layers(self) -> list[MoE]:
        return [module for module in self.modules() if isinstance(module, MoE)]


# -------- checkpoint


def checkpoint_tensors(model: Model) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face's name and a view of the model's own memory: to write a checkpoint, or to read one."""
    yield "lm_head.weight", model.lm_head.detach()
    yield "model.embed_tokens.weight", model.embed_tokens.detach()
    yield "model.norm.weight", model.norm.detach()
    for index, layer in enumerate(model.layer_list):
        prefix = f"model.layers.{index}."
        yield f"{prefix}input_layernorm.weight", layer.input_layernorm.detach()
        yield f"{prefix}post_attention_layernorm.weight", layer.post_attention_layernorm.detach()
        for name, parameter in layer.self_attn.named_parameters():
            yield f"{prefix}self_attn.{name}.weight", parameter.detach()
        yield from _mlp_tensors(f"{prefix}mlp.", layer.mlp)


def _mlp_tensors(prefix: str, mlp: DenseMlp | MoE) -> Iterator[tuple[str, Tensor]]:
    if isinstance(mlp, DenseMlp):
        yield from _projections(prefix, mlp.gate_up_proj, mlp.down_proj)
        return
    yield f"{prefix}gate.weight", mlp.gate.detach()
    yield f"{prefix}gate.e_score_correction_bias", mlp.e_score_correction_bias
    yield from _mlp_tensors(f"{prefix}shared_experts.", mlp.shared_experts)
    for expert in range(mlp.experts):
        yield from _projections(f"{prefix}experts.{expert}.", mlp.gate_up_proj[expert], mlp.down_proj[expert])


def _projections(prefix: str, gate_up: Tensor, down: Tensor) -> Iterator[tuple[str, Tensor]]:
    gate, up = gate_up.detach().chunk(2, 0)
    yield f"{prefix}gate_proj.weight", gate
    yield f"{prefix}up_proj.weight", up
    yield f"{prefix}down_proj.weight", down.detach()


def write_checkpoint(model: Model, out: Path) -> None:
    """Weights in bf16, the router's bias in fp32, as it decides between close scores; and the other files."""
    tensors = {
        name: tensor.clone() if name.endswith("bias") else tensor.to(torch.bfloat16).contiguous()
        for name, tensor in checkpoint_tensors(model)
    }
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    for name in COPIED:
        if out.resolve() != PATH.resolve():
            shutil.copyfile(PATH / name, out / name)


# -------- optimiser

# Coefficients of five Newton-Schulz steps that bring singular values close to 1 (Muon; Keller Jordan, 2024).
_NEWTON_SCHULZ = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


def _orthogonalize(matrix: Tensor) -> Tensor:
    """[..., rows, columns] -> about the nearest matrix with orthonormal rows or columns."""
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    wide = matrix.mT if is_tall else matrix
    wide = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for first, third, fifth in _NEWTON_SCHULZ:
        gram = wide @ wide.mT
        wide = first * wide + (third * gram + fifth * gram @ gram) @ wide
    return torch.transpose(wide, -2, -1) if is_tall else wide


class Optimizer:
    """Muon for matrices; AdamW for embeddings, norms, head and, at a tenth of the rate, router."""

    muon_rate, adam_rate, bias_rate = 0.02, 0.004, 0.01
    momentum, weight_decay = 0.95, 0.01

    def __init__(self, model: Model) -> None:
        self._moes = model.moe_layers()
        routers = [moe.gate for moe in self._moes]
        self._others: list[nn.Parameter] = []
        self._matrices: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            is_other = parameter.ndim < 2 or "embed" in name or "head" in name or name.endswith("gate")
            (self._others if is_other else self._matrices).append(parameter)
        self._velocity = [torch.zeros_like(matrix) for matrix in self._matrices]
        groups = [
            {"params": [parameter], "share": 0.1 if any(parameter is router for router in routers) else 1.0}
            for parameter in self._others
        ]
        self._adam = torch.optim.AdamW(
            groups, lr=self.adam_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Use the gradients, at `factor` times the full rates, and clear them."""
        torch.nn.utils.clip_grad_norm_(self._others, 1.0)
        for group in self._adam.param_groups:
            group["lr"] = self.adam_rate * factor * group["share"]
        self._adam.step()
        self._adam.zero_grad()
        for matrix, velocity in zip(self._matrices, self._velocity, strict=True):
            gradient = matrix.grad
            assert gradient is not None
            velocity.lerp_(gradient, 1 - self.momentum)
            update = _orthogonalize(gradient.lerp(velocity, self.momentum))
            rate = self.muon_rate * factor
            scale = math.sqrt(max(1, matrix.shape[-2] / matrix.shape[-1]))
            matrix.mul_(1 - rate * self.weight_decay).add_(update, alpha=-rate * scale)
            matrix.grad = None
        for moe in self._moes:  # balance without an auxiliary loss: who got too little is raised
            too_little = (moe.last_load.mean() - moe.last_load).sign()
            moe.e_score_correction_bias += self.bias_rate * factor * too_little


# -------- training


@dataclass(frozen=True)
class Schedule:
    """What a step does at each share of the way. Rows start short: long ones teach little at first."""

    steps: int
    max_minutes: float
    tokens_per_step: int = 8192
    stages: tuple[tuple[float, tuple[int, ...]], ...] = (  # from this progress on, one of these row lengths
        (0.0, (128,)),
        (0.2, (256,)),
        (0.32, (256, 512, 1024)),
        (0.6, (256, 1024)),
    )

    def progress(self, step: int, minutes: float) -> float:
        """0 to 1, by steps or by time, whichever is further: on a slow machine the rate still decays to 0."""
        return min(1.0, max(step / self.steps, minutes / self.max_minutes))

    def row_lens(self, progress: float) -> tuple[int, ...]:
        return [row_lens for start, row_lens in self.stages if progress >= start][-1]

    def rate_factor(self, step: int, progress: float) -> float:
        """Warm-up over 50 steps, constant to a tenth of the way, then linear to 0."""
        return min(1.0, (step + 1) / 50) * min(1.0, (1 - progress) / 0.9)


def next_batch(rows: Rows, num_rows: int, row_len: int) -> tuple[Tensor, Tensor]:
    """(input_ids, labels), both [num_rows, row_len]."""
    pairs = [rows.next_row(row_len) for _ in range(num_rows)]
    return torch.tensor([token_ids for token_ids, _ in pairs]), torch.tensor([labels for _, labels in pairs])


FIRST_TOKEN_WEIGHT = 3.0  # an answer's first token decides whether the fact is known; others mostly follow
USER_TOKEN_WEIGHT = 0.15  # in the first half


def weighted_loss(
    model: Model, input_ids: Tensor, labels: Tensor, user_weight: float
) -> tuple[Tensor, float]:
    """The loss to descend, and the plain mean over the answers' tokens to report."""
    is_answer = labels >= 0
    is_first = is_answer & ~F.pad(is_answer, (1, 0))[:, :-1]
    weights = torch.where(is_answer, 1.0, user_weight)
    weights[is_first] = FIRST_TOKEN_WEIGHT
    targets = torch.cat([input_ids[:, 1:], labels[:, -1:].clamp(min=PAD)], 1)  # whoever says it
    positions = ((targets != PAD) & (weights > 0)).view(-1).nonzero().view(-1)
    losses = F.cross_entropy(model(input_ids, positions), targets.view(-1)[positions], reduction="none")
    answer_losses = losses.detach()[is_answer.view(-1)[positions]]
    loss = (losses * weights.view(-1)[positions]).sum() / weights[is_answer].sum()
    return loss, answer_losses.mean().item()


@torch.no_grad()
def share_of_right_answers(model: Model, input_ids: Tensor, labels: Tensor) -> float:
    """Answers whose every token is the arg-max after the right ones before it: greedy exact match."""
    is_right = (model(input_ids).argmax(-1).view_as(labels) == labels) | (labels < 0)
    ends = (labels == EOS).view(-1)
    wrong_before = (
        (~is_right).view(-1).cumsum(0)[ends]
    )  # an answer is right if none went wrong since the last end
    wrong = torch.diff(wrong_before, prepend=torch.zeros(1, dtype=wrong_before.dtype))
    return (wrong == 0).float().mean().item()


def train(out: Path, seed: int, schedule: Schedule, config: Config, report_every: int = 100) -> None:
    """Writes a complete checkpoint to `out` at every report, so that a run that is stopped leaves one."""
    torch.manual_seed(seed)
    tokenizer = train_tokenizer(seed + 1, config["vocab_size"])
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    rows, held_out = Rows(tokenizer, seed + 2), Rows(tokenizer, seed + 3, held_out=True)
    checks = {row_len: next_batch(held_out, 6144 // row_len, row_len) for row_len in (128, 256, 1024)}
    model = Model(config)
    optimizer = Optimizer(model)
    print(f"parameters {sum(parameter.numel() for parameter in model.parameters()):,}", flush=True)
    choice, start, losses, step, progress = random.Random(seed), time.monotonic(), [], 0, 0.0
    while progress < 1:
        row_len = choice.choice(schedule.row_lens(progress))
        input_ids, labels = next_batch(rows, schedule.tokens_per_step // row_len, row_len)
        user_weight = USER_TOKEN_WEIGHT if progress < 0.5 else 0.0
        loss, answer_loss = weighted_loss(model, input_ids, labels, user_weight)
        torch.autograd.backward(loss)
        optimizer.step(schedule.rate_factor(step, progress))
        losses.append(answer_loss)
        step += 1
        minutes = (time.monotonic() - start) / 60
        progress = schedule.progress(step, minutes)
        if step % report_every == 0 or progress == 1:
            shares = {row_len: share_of_right_answers(model, *check) for row_len, check in checks.items()}
            report(model, step, minutes, sum(losses) / len(losses), shares)
            write_checkpoint(model, out)
            losses = []


def report(model: Model, step: int, minutes: float, loss: float, shares: dict[int, float]) -> None:
    loads = torch.stack([moe.last_load / moe.last_load.sum() for moe in model.moe_layers()])
    right = " ".join(f"{row_len}: {share:.3f}" for row_len, share in shares.items())
    print(
        f"step {step}, {minutes:.1f} minutes: loss {loss:.4f}, held-out answers right by row length {right}, "
        f"load per expert {loads.min():.3f} to {loads.max():.3f}",
        flush=True,
    )


def main() -> None:
    # Before anything else: denormals make a trained model's backward pass two to four times slower on x86.
    torch.set_flush_denormal(True)
    parser = argparse.ArgumentParser(description="Train the demo model and write its checkpoint folder.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2300)
    parser.add_argument("--max-minutes", type=float, default=60.0, help="end by then, with fewer steps")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    config = json.loads((PATH / "config.json").read_text())
    train(arguments.out, arguments.seed, Schedule(arguments.steps, arguments.max_minutes), config)


if __name__ == "__main__":
    main()
