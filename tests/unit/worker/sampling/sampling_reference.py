"""SamplingStep of worker.proto, word by word, in fp64 and over the whole vocabulary."""

import numpy as np
from triptych.v1 import worker_pb2

from services.worker.sampling.philox import uniform


def adjusted(logits: np.ndarray, step: worker_pb2.SamplingStep) -> np.ndarray:
    """Penalties, bias, banned and masked ids."""
    x = logits.astype(np.float64)
    for token_id in {*step.prompt_token_ids, *step.output_token_counts}:
        penalty = step.repetition_penalty
        x[token_id] = x[token_id] / penalty if x[token_id] > 0 else x[token_id] * penalty
    for token_id, count in step.output_token_counts.items():
        x[token_id] -= step.presence_penalty + count * step.frequency_penalty
    for token_id, bias in step.logit_bias.items():
        x[token_id] += bias
    for token_id in range(len(x)):
        is_masked = step.allowed_token_mask and not (
            token_id // 8 < len(step.allowed_token_mask)
            and step.allowed_token_mask[token_id // 8] >> token_id % 8 & 1
        )
        if is_masked or token_id in step.banned_token_ids:
            x[token_id] = -np.inf
    return x


def distribution(logits: np.ndarray, step: worker_pb2.SamplingStep) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that may be drawn, by falling probability and rising id, and their probabilities."""
    x = adjusted(logits, step)
    order = np.lexsort((np.arange(len(x)), -x))
    order = order[np.isfinite(x[order])]
    if step.temperature < 1e-5 or not len(order):
        return order[:1], np.ones(len(order[:1]))
    order = order[: step.top_k or len(order)]
    p = np.exp((x[order] - x[order[0]]) / step.temperature)
    p /= p.sum()
    if step.top_p < 1:
        num_kept = int((np.concatenate(([0.0], p.cumsum()[:-1])) < step.top_p).sum())
        order, p = order[:num_kept], p[:num_kept]
    is_kept = p >= step.min_p * p[0]
    return order[is_kept], p[is_kept] / p[is_kept].sum()


def draw(logits: np.ndarray, step: worker_pb2.SamplingStep) -> tuple[int, float]:
    """The token, and how far u is from the nearest boundary of the cumulative probability."""
    order, p = distribution(logits, step)
    cumulative = p.cumsum()
    u = uniform([step.seed], [step.num_output_tokens])[0]
    index = min(int((cumulative <= u).sum()), len(order) - 1)
    inner = cumulative[:-1]
    return int(order[index]), float(abs(inner - u).min(initial=1.0))
