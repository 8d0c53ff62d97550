"""The best logits of a row, in the one order there is."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.sampling.selection import best, mass


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0]), min_size=40, max_size=40),
        min_size=1,
        max_size=4,
    ),
    count=st.integers(1, 45),
)
def test_equals_are_taken_and_ordered_by_rising_id(rows: list[list[float]], count: int) -> None:
    values, ids = best(torch.tensor(rows), count)
    for row, row_values, row_ids in zip(rows, values, ids, strict=True):
        expected = sorted(range(40), key=lambda i: (-row[i], i))[:count]
        assert row_ids.tolist() == expected
        assert row_values.tolist() == [row[i] for i in expected]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_mass_is_the_sum_of_the_exponentials(temperature: float) -> None:
    row = torch.randn(1000).numpy()
    expected = np.exp((row.astype(np.float64) - row.max()) / temperature).sum()
    assert mass(row, temperature) == pytest.approx(expected, rel=1e-6)


def test_mass_bears_differences_beyond_fp32() -> None:
    row = np.array([3e38, -3e38, -np.inf, 3e38], dtype=np.float32)
    assert mass(row, 1e-5) == 2.0
