"""Log-probabilities: log-softmax of the raw logits, before temperature, penalties and bias."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from triptych.v1 import types_pb2

from services.worker.sampling.selection import best, mass

# Larger logits are cut to this: their differences are still finite in fp32, and no real logit comes near.
_LARGEST = torch.finfo(torch.float32).max / 4


def finite(logits: Tensor) -> Tensor:
    """Logits cut to ± _LARGEST, NaN to the smallest, so that every log-probability is finite.

    The same tensor if there is nothing to cut.
    """
    smallest, largest = logits.aminmax()
    # A NaN anywhere makes both NaN, and the comparison false.
    if smallest >= -_LARGEST and largest <= _LARGEST:
        return logits
    return logits.nan_to_num(nan=-_LARGEST).clamp(-_LARGEST, _LARGEST)


def position_logprobs(
    logits: Tensor, token_ids: Sequence[int], num_top: int
) -> list[types_pb2.PositionLogprobs]:
    """Per row of finite logits [rows, vocab]: the row's own token, and its `num_top` most likely ones."""
    num_top = min(num_top, logits.shape[1])
    values, ids = best(logits, num_top) if num_top else (np.empty((len(logits), 0)),) * 2
    return [
        _position(row, token_id, top_values, top_ids)
        for row, token_id, top_values, top_ids in zip(logits.numpy(), token_ids, values, ids, strict=True)
    ]


def _position(
    row: np.ndarray, token_id: int, top_values: np.ndarray, top_ids: np.ndarray
) -> types_pb2.PositionLogprobs:
    largest, log_mass = float(row.max()), math.log(mass(row))
    value = row[token_id]
    # Equals are ranked by id, as everywhere.
    rank = 1 + int((row > value).sum()) + int((row[:token_id] == value).sum())
    top = (
        types_pb2.TokenLogprob(
            token_id=int(top_id), logprob=float(top_value) - largest - log_mass, rank=i + 1
        )
        for i, (top_value, top_id) in enumerate(zip(top_values, top_ids, strict=True))
    )
    token = types_pb2.TokenLogprob(token_id=token_id, logprob=float(value) - largest - log_mass, rank=rank)
    return types_pb2.PositionLogprobs(token=token, top=top)
