"""Ranks and masses of a row that is never sorted, against the sorted row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.sampling.philox import uniform
from services.worker.sampling.whole_row import RankedRow, draw_from_row
from tests.unit.worker.sampling.sampling_reference import draw
from tests.unit.worker.step.steps import sampling

ROWS = {
    "normal": np.random.default_rng(1).normal(size=5000),
    "equal": np.zeros(400),
    "few values": np.random.default_rng(2).integers(0, 4, size=3000).astype(float),
    "one far ahead": np.concatenate(([1e30], np.zeros(300))),
    "some banned": np.where(np.arange(900) % 3, np.random.default_rng(3).normal(size=900), -np.inf),
    "extreme": np.array([3e38, -3e38, 0.0, 3e38, -np.inf]),
}


@pytest.mark.parametrize("temperature", [1e-5, 0.6, 1.0, 50.0])
@pytest.mark.parametrize("name", ROWS)
def test_ranks_and_masses_are_those_of_the_sorted_row(name: str, temperature: float) -> None:
    row = ROWS[name].astype(np.float32)
    order = np.lexsort((np.arange(len(row)), -row))
    ranked = RankedRow(row, temperature)
    cumulative = np.exp((row[order].astype(np.float64) - float(row.max())) / temperature).cumsum()
    assert ranked.total == pytest.approx(cumulative[-1], rel=1e-12)
    for rank in {0, 1, len(row) // 3, len(row) - 1}:
        assert ranked.token_at(rank) == order[rank]
        assert ranked.mass_of(rank + 1) == pytest.approx(cumulative[rank], rel=1e-12)
    for share in (0.0, 0.01, 0.5, 0.9999):
        mass = share * cumulative[-1]
        # Not at a boundary, where the two sums may round apart.
        if np.abs(cumulative - mass).min() > 1e-9 * cumulative[-1]:
            expected = int((cumulative <= mass).sum())
            assert ranked.rank_at(mass, "left") == ranked.rank_at(mass, "right") == expected


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(["normal", "equal", "few values", "some banned"]),
    temperature=st.sampled_from([1e-3, 0.6, 1.0, 5.0]),
    top_k=st.sampled_from([1, 2, 200, 399, 400]),
    top_p=st.sampled_from([1e-9, 0.3, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_a_draw_is_the_contract_s(
    name: str, temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    row = ROWS[name].astype(np.float32)
    values = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    step = sampling(**values, seed=seed)
    expected, distance = draw(row, step)
    fp32 = {"temperature": step.temperature, "top_p": step.top_p, "min_p": step.min_p}
    token_id = draw_from_row(row, **fp32, top_k=top_k, u=float(uniform([seed], [0])[0]))
    assert token_id == expected or distance < 1e-9
