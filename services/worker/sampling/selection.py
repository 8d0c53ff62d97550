"""The best logits of each row, exactly and without sorting the whole row.

Everything here is computed row by row: what a row gives does not depend on its neighbours in the batch.
"""

import numpy as np
from torch import Tensor


def best(logits: Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest of each row of logits [rows, vocab] (on the CPU, no NaN).

    Values fp32 and ids int64, both [rows, count], by falling value and, among equals, rising id; this also
    decides which of several equals are in at the end.
    """
    if count >= logits.shape[1]:
        whole = logits.sort(dim=-1, descending=True, stable=True)
        return whole.values.numpy(), whole.indices.numpy()
    top = logits.topk(count)
    values, ids = top.values.numpy(), top.indices.numpy()
    _take_lowest_ids(logits, values[:, -1], values, ids)
    order = np.lexsort((ids, -values), axis=-1)
    return np.take_along_axis(values, order, -1), np.take_along_axis(ids, order, -1)


def _take_lowest_ids(logits: Tensor, smallest: np.ndarray, values: np.ndarray, ids: np.ndarray) -> None:
    """Replaces, in place, topk's arbitrary choice among the ids that share the smallest value."""
    rows = logits.numpy()
    num_equal = (rows == smallest[:, None]).sum(-1)
    num_chosen = (values == smallest[:, None]).sum(-1)
    for row in np.flatnonzero(num_equal > num_chosen):
        ids[row, -num_chosen[row] :] = np.flatnonzero(rows[row] == smallest[row])[: num_chosen[row]]


def mass(row: np.ndarray, temperature: float = 1.0) -> float:
    """Σ exp((x - max) / temperature) over a row [vocab] of fp32: exponentials in fp32, their sum in fp64."""
    # A difference beyond fp32 becomes -inf, and its exponential 0, as it should.
    with np.errstate(over="ignore"):
        exponentials = np.exp((row - row.max()) / np.float32(temperature))
    return float(exponentials.sum(dtype=np.float64))
