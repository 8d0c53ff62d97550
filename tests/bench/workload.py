"""What both sides are asked to do, and what is reported of it."""

import random
from dataclasses import dataclass

from tests.bench.checkpoint import VOCAB_SIZE

DECODE_TOKENS = 32


@dataclass(frozen=True)
class Speed:
    """Tokens per second: of one prompt's prefill, and of decode by batch size."""

    prefill: float
    decode: dict[int, float]


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Random token ids, the same for the same arguments."""
    generator = random.Random(f"{count} {length} {seed}")
    return [[generator.randrange(VOCAB_SIZE) for _ in range(length)] for _ in range(count)]
