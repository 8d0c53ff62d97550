"""Chooses tokens from logits, exactly as SamplingStep in worker.proto says.

Runs on the CPU, whatever the model's device: sorting and selection differ between devices. Greedy rows need
one argmax. The others are drawn from their NUM_CANDIDATES best logits where those suffice, else from the
whole row (whole_row.py). Both ways give the same token, which depends on nothing else in the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from triptych.v1 import worker_pb2

from services.worker.sampling.logit_adjustment import adjust, has_adjustments
from services.worker.sampling.logprobs import finite, position_logprobs
from services.worker.sampling.philox import uniform
from services.worker.sampling.selection import best, mass
from services.worker.sampling.whole_row import draw_from_row

# Temperatures below act as 0.
MIN_TEMPERATURE = 1e-5
# How many of the best logits are tried first.
NUM_CANDIDATES = 128

_NOT_FINITE = worker_pb2.SAMPLE_ERROR_REASON_LOGITS_NOT_FINITE
_NOTHING_ALLOWED = worker_pb2.SAMPLE_ERROR_REASON_NOTHING_ALLOWED


def sample(
    logits: Tensor, row_ids: Sequence[int], steps: Sequence[worker_pb2.SamplingStep]
) -> list[worker_pb2.Sample]:
    """One Sample per step, chosen from row row_ids[i] of logits [rows, vocab], fp32 and on the CPU.

    Several steps may share a row. One with NaN or without any finite logit fails its own samples only.
    """
    raw = finite(logits)
    is_bad = [False] * len(logits)
    if raw is not logits:
        is_bad = (logits.isnan().any(-1) | ~logits.isfinite().any(-1)).tolist()
    rows = _adjusted(raw, row_ids, steps)
    # Among equals max takes the first: the lowest id.
    largest, token_ids = (tensor.numpy() for tensor in rows.max(-1))
    is_drawn = np.array([step.temperature >= MIN_TEMPERATURE for step in steps], dtype=bool)
    drawn = np.flatnonzero(is_drawn & ~np.isneginf(largest)).tolist()
    if drawn:
        token_ids[drawn] = _draw(rows[drawn], [steps[i] for i in drawn])
    samples = []
    for i, (row, step) in enumerate(zip(row_ids, steps, strict=True)):
        if is_bad[row]:
            samples.append(_failed(_NOT_FINITE, "the model's logits are not finite"))
        elif largest[i] == -np.inf:
            samples.append(_failed(_NOTHING_ALLOWED, "bans and mask leave no token"))
        else:
            samples.append(_chosen(raw[row], int(token_ids[i]), step))
    return samples


def _adjusted(raw: Tensor, row_ids: Sequence[int], steps: Sequence[worker_pb2.SamplingStep]) -> Tensor:
    """Each step's own row [steps, vocab]; `raw` itself if that is the same."""
    to_adjust = [i for i, step in enumerate(steps) if has_adjustments(step)]
    if not to_adjust and list(row_ids) == list(range(len(raw))):
        return raw
    rows = raw.index_select(0, torch.tensor(row_ids, dtype=torch.int64))
    for i in to_adjust:
        adjust(rows[i], steps[i])
    return rows


def _failed(reason: worker_pb2.SampleErrorReason.ValueType, message: str) -> worker_pb2.Sample:
    return worker_pb2.Sample(error=worker_pb2.SampleError(reason=reason, message=message))


def _chosen(raw: Tensor, token_id: int, step: worker_pb2.SamplingStep) -> worker_pb2.Sample:
    if not step.HasField("logprobs"):
        return worker_pb2.Sample(token_id=token_id)
    logprobs = position_logprobs(raw[None], [token_id], step.logprobs)[0]
    return worker_pb2.Sample(token_id=token_id, logprobs=logprobs)


@dataclass(frozen=True)
class _Draws:
    """The parameters of a batch of draws, each [rows]."""

    temperature: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray
    min_p: np.ndarray
    # The random numbers, in [0, 1).
    u: np.ndarray
    # Of the whole row (selection.mass), or nothing where top_k cuts the row first.
    mass: np.ndarray


def _draw(logits: Tensor, steps: Sequence[worker_pb2.SamplingStep]) -> np.ndarray:
    """Token ids [rows] for logits [rows, vocab] with at least one above -inf."""
    vocab_size = logits.shape[1]
    top_k = np.array([min(step.top_k, vocab_size) or vocab_size for step in steps])
    draws = _Draws(
        temperature=np.array([step.temperature for step in steps]),
        top_k=top_k,
        top_p=np.array([step.top_p for step in steps]),
        min_p=np.array([step.min_p for step in steps]),
        u=uniform([step.seed for step in steps], [step.num_output_tokens for step in steps]),
        mass=np.array(
            [
                mass(row, step.temperature) if k == vocab_size else 0.0
                for row, step, k in zip(logits.numpy(), steps, top_k, strict=True)
            ]
        ),
    )
    token_ids, is_decided = _choose(*best(logits, NUM_CANDIDATES), draws, vocab_size)
    for i in np.flatnonzero(~is_decided):
        token_ids[i] = draw_from_row(
            logits[i].numpy(),
            temperature=draws.temperature[i],
            top_k=int(top_k[i]),
            top_p=draws.top_p[i],
            min_p=draws.min_p[i],
            u=draws.u[i],
        )
    return token_ids


def _choose(
    values: np.ndarray, ids: np.ndarray, draws: _Draws, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses from each row's best logits, `values` and `ids` [rows, candidates] in order.

    Returns token ids [rows], and whether the candidates sufficed; always so if they are the whole vocabulary.
    Every filter keeps a prefix of the order, so that a row is described by how many tokens it keeps.
    """
    num_candidates = values.shape[1]
    # Relative to the best token's, in fp64. In order, so that a prefix sums alike however long the row is.
    weights = np.exp((values.astype(np.float64) - values[:, :1]) / draws.temperature[:, None])
    cumulative = weights.cumsum(-1)
    last_of_top_k = np.minimum(draws.top_k, num_candidates)[:, None] - 1
    top_k_mass = np.take_along_axis(cumulative, last_of_top_k, -1)[:, 0]
    total = np.where(draws.top_k == vocab_size, draws.mass, top_k_mass)
    before = cumulative - weights
    kept_by_top_p = (before < (draws.top_p * total)[:, None]).sum(-1)
    kept_by_top_p[draws.top_p >= 1] = vocab_size
    kept_by_min_p = (weights >= draws.min_p[:, None]).sum(-1)
    kept_by_min_p[draws.min_p <= 0] = vocab_size
    num_kept = np.minimum(np.minimum(kept_by_top_p, kept_by_min_p), draws.top_k)
    last_kept = np.minimum(num_kept, num_candidates)[:, None] - 1
    kept_mass = np.where(num_kept == vocab_size, total, np.take_along_axis(cumulative, last_kept, -1)[:, 0])
    chosen = (cumulative <= (draws.u * kept_mass)[:, None]).sum(-1)
    # Decided if no filter may keep more than the candidates, the mass is known, and the draw ends among them.
    is_known = (num_kept < num_candidates) | (num_kept == draws.top_k)
    is_known &= (draws.top_k <= num_candidates) | (draws.top_k == vocab_size)
    is_decided = (num_candidates >= vocab_size) | (is_known & (chosen < num_candidates))
    # Rounding may leave u × mass at the very end; a token of weight 0 is never chosen.
    num_choosable = np.minimum(num_kept, (weights > 0).sum(-1))
    chosen = np.minimum(chosen, num_choosable - 1).clip(0)
    return np.take_along_axis(ids, chosen[:, None], -1)[:, 0], is_decided
