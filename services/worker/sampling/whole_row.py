"""Draws from a whole row without sorting it, where the nucleus is wider than the sampler's candidates.

The contract's order (falling probability, rising id) matters at two places only: where the filters end, and
where the draw ends. So tokens are counted and their weights summed in buckets of similar logits, and only the
buckets at those places are sorted.
"""

from typing import Literal

import numpy as np

# With this many, the fullest bucket of a row of 129,280 normal logits has a few hundred tokens.
_NUM_BUCKETS = 1024
# At this many temperatures below the best logit a weight is 0 in fp64.
_FARTHEST = 746.0


class RankedRow:
    """One row's weights exp((x - max) / temperature), as if in order. `rank` counts from 0."""

    def __init__(self, row: np.ndarray, temperature: float) -> None:
        """row [vocab], fp32, at least one above -inf."""
        self._row = row
        below = row.max().astype(np.float64) - row
        self._weights = np.exp(below / -temperature)
        farthest = min(below[np.isfinite(below)].max(), _FARTHEST * temperature)
        per_unit = _NUM_BUCKETS / farthest if farthest > 0 else 0.0
        # Logits fall from bucket to bucket. Tokens of weight 0 are in the last one.
        scaled = np.minimum(below, farthest) * per_unit
        self._buckets = np.minimum(scaled, _NUM_BUCKETS - 1).astype(np.int64)
        self._ends = np.bincount(self._buckets, minlength=_NUM_BUCKETS).cumsum()
        self._masses = np.bincount(self._buckets, self._weights, _NUM_BUCKETS).cumsum()

    @property
    def total(self) -> float:
        return float(self._masses[-1])

    @property
    def num_choosable(self) -> int:
        """Tokens whose weight is not 0."""
        return int((self._weights > 0).sum())

    def num_at_least(self, weight: float) -> int:
        """Tokens of this weight or more; the best token's is 1."""
        return int((self._weights >= weight).sum())

    def mass_of(self, count: int) -> float:
        """Mass of the first `count` tokens, one at least."""
        bucket = int(np.searchsorted(self._ends, count - 1, side="right"))
        _, cumulative = self._sorted(bucket)
        return float(cumulative[count - 1 - self._start(bucket)])

    def rank_at(self, mass: float, side: Literal["left", "right"]) -> int:
        """How many of the first tokens together have a mass below `mass`, or, for "right", equal to it."""
        bucket = int(np.searchsorted(self._masses, mass, side=side))
        if bucket == _NUM_BUCKETS:
            return len(self._row)
        _, cumulative = self._sorted(bucket)
        return self._start(bucket) + int(np.searchsorted(cumulative, mass, side=side))

    def token_at(self, rank: int) -> int:
        bucket = int(np.searchsorted(self._ends, rank, side="right"))
        return int(self._sorted(bucket)[0][rank - self._start(bucket)])

    def _start(self, bucket: int) -> int:
        return int(self._ends[bucket - 1]) if bucket else 0

    def _sorted(self, bucket: int) -> tuple[np.ndarray, np.ndarray]:
        """The bucket's tokens in order, and the mass of the row up to and with each."""
        ids = np.flatnonzero(self._buckets == bucket)
        ids = ids[np.argsort(-self._row[ids], kind="stable")]
        before = self._masses[bucket - 1] if bucket else 0.0
        return ids, before + self._weights[ids].cumsum()


def draw_from_row(
    row: np.ndarray, *, temperature: float, top_k: int, top_p: float, min_p: float, u: float
) -> int:
    """The token that SamplingStep chooses; top_k 1 to vocab."""
    ranked = RankedRow(row, temperature)
    total = ranked.mass_of(top_k) if top_k < len(row) else ranked.total
    num_kept = top_k
    if top_p < 1:
        # The token that crosses the boundary is kept.
        num_kept = min(num_kept, ranked.rank_at(top_p * total, "left") + 1)
    if min_p > 0:
        num_kept = min(num_kept, ranked.num_at_least(min_p))
    kept_mass = ranked.mass_of(num_kept) if num_kept < len(row) else total
    chosen = ranked.rank_at(u * kept_mass, "right")
    # Rounding may leave u × mass at the very end.
    return ranked.token_at(min(chosen, num_kept - 1, ranked.num_choosable - 1))
