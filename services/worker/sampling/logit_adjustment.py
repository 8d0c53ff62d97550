"""What changes logits before a token is chosen: penalties, then bias, then bans and the mask."""

import numpy as np
import torch
from torch import Tensor
from triptych.v1 import worker_pb2


def has_adjustments(step: worker_pb2.SamplingStep) -> bool:
    has_penalty = step.repetition_penalty != 1 or step.presence_penalty != 0 or step.frequency_penalty != 0
    return bool(has_penalty or step.logit_bias or step.banned_token_ids or step.allowed_token_mask)


def adjust(logits: Tensor, step: worker_pb2.SamplingStep) -> None:
    """Changes one row [vocab] in place. Among the penalties, repetition comes first, as in vLLM."""
    _penalise(logits, step)
    if step.logit_bias:
        logits[_ids(step.logit_bias)] += torch.tensor(list(step.logit_bias.values()))
    # A token whose logit bias or penalties made -inf may still be chosen; only bans are -inf.
    finfo = torch.finfo(logits.dtype)
    logits.clamp_(finfo.min, finfo.max)
    if step.banned_token_ids:
        logits[_ids(step.banned_token_ids)] = -torch.inf
    if step.allowed_token_mask:
        logits.masked_fill_(torch.from_numpy(~_is_allowed(step.allowed_token_mask, len(logits))), -torch.inf)


def _penalise(logits: Tensor, step: worker_pb2.SamplingStep) -> None:
    output_ids = _ids(step.output_token_counts)
    if step.repetition_penalty != 1:
        seen = torch.cat((_ids(step.prompt_token_ids), output_ids)).unique()
        values = logits[seen]
        penalised = torch.where(
            values > 0, values / step.repetition_penalty, values * step.repetition_penalty
        )
        logits[seen] = penalised
    if step.presence_penalty != 0 or step.frequency_penalty != 0:
        counts = torch.tensor(list(step.output_token_counts.values()), dtype=torch.float32)
        penalty = step.presence_penalty * (counts > 0) + step.frequency_penalty * counts
        logits[output_ids] -= penalty


def _ids(ids: object) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.int64)  # type: ignore[call-overload]


def _is_allowed(mask: bytes, vocab_size: int) -> np.ndarray:
    """Bit i % 8 of byte i / 8 says whether token i may be chosen; ids past the end may not."""
    allowed = np.zeros(vocab_size, dtype=bool)
    bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little")[:vocab_size]
    allowed[: len(bits)] = bits
    return allowed
