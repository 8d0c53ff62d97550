"""Philox4x32-10 against the vectors that its authors publish (Random123, examples/kat_vectors)."""

import numpy as np
import pytest

from services.worker.sampling.philox import philox4x32, uniform

KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> np.ndarray:
    return np.array([[int(word, 16)] for word in text.split()], dtype=np.uint64)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_the_published_vectors_come_out(counter: str, key: str, expected: str) -> None:
    assert (philox4x32(words(counter), words(key)) == words(expected)).all()


def test_a_draw_is_the_upper_53_bits_of_the_first_64() -> None:
    # With seed and index 0 the first two words are those of the first vector; the second is the higher one.
    expected = (0xE169C58D6627E8D5 >> 11) * 2.0**-53
    assert uniform([0], [0])[0] == expected


def test_seed_and_index_enter_with_their_low_word_first() -> None:
    index, seed = 7, 0x299F31D0A4093822
    block = philox4x32(words("00000007 00000000 00000000 00000000"), words("a4093822 299f31d0"))[:, 0]
    assert uniform([seed], [index])[0] == ((int(block[1]) << 32 | int(block[0])) >> 11) * 2.0**-53


def test_draws_do_not_depend_on_their_row() -> None:
    seeds, indices = [5, 2**64 - 1, 5], [0, 2**32 - 1, 1]
    together = uniform(seeds, indices)
    alone = [uniform([seed], [index])[0] for seed, index in zip(seeds, indices, strict=True)]
    assert together.tolist() == alone


def test_draws_fill_the_unit_interval_evenly() -> None:
    draws = uniform([9] * 20_000, range(20_000))
    counts, _ = np.histogram(draws, bins=20, range=(0, 1))
    chi_square = ((counts - 1000.0) ** 2 / 1000.0).sum()
    assert chi_square < 43.8  # 19 degrees of freedom, one failure in a thousand
