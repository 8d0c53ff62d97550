"""The random numbers of sampling: Philox4x32-10, a pure function of a seed and a draw's index.

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC11), §4. No state: a draw is the
same at any row, in any batch, on any worker.
"""

from collections.abc import Sequence

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
# The key's increments per round: the golden ratio and the square root of 3, less 1, in 32 bits.
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_NUM_ROUNDS = 10
_LOW_32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def philox4x32(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """counter [4, n] and key [2, n] -> [4, n]; 32-bit words held in uint64, for their products."""
    c0, c1, c2, c3 = counter.astype(np.uint64)
    k0, k1 = key.astype(np.uint64)
    for _ in range(_NUM_ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1 = (product1 >> _32) ^ c1 ^ k0, product1 & _LOW_32
        c2, c3 = (product0 >> _32) ^ c3 ^ k1, product0 & _LOW_32
        k0, k1 = (k0 + _WEYL[0]) & _LOW_32, (k1 + _WEYL[1]) & _LOW_32
    return np.stack((c0, c1, c2, c3))


def uniform(seeds: Sequence[int], draw_indices: Sequence[int]) -> np.ndarray:
    """One number in [0, 1) for each pair, float64 [n].

    The upper 53 bits of the first 64-bit output (words 1 and 0) with key `seed` and counter (draw_index, 0),
    all 64-bit numbers with their low word first; times 2^-53.
    """
    key = np.array(seeds, dtype=np.uint64)
    counter = np.array(draw_indices, dtype=np.uint64)
    zero = np.zeros_like(counter)
    words = philox4x32(
        np.stack((counter & _LOW_32, counter >> _32, zero, zero)), np.stack((key & _LOW_32, key >> _32))
    )
    output = words[0] | words[1] << _32
    return (output >> np.uint64(11)).astype(np.float64) * 2.0**-53
