"""What both sides are asked to do, and what is reported of it."""

import random
from dataclasses import dataclass, field

from tests.bench.checkpoint import VOCAB_SIZE

DECODE_TOKENS = 32
BATCH_SIZES = (1, 4, 16)
# As chat applications sample.
TEMPERATURE, TOP_P = 0.6, 0.95
# Prompts of the batches: short, so that decode is what is measured.
BATCH_PROMPT_LEN = 32
# Tokens of a prompt and what follows it; the last one is all that the model takes.
CONTEXTS = (512, 2048, 8192)


@dataclass
class Speed:
    """Tokens per second."""

    # Of one prompt, by context; and of one sequence's decode behind it.
    prefill: dict[int, float] = field(default_factory=dict)
    decode_at: dict[int, float] = field(default_factory=dict)
    # Of all sequences together, by their number: greedy, and sampled.
    greedy: dict[int, float] = field(default_factory=dict)
    sampled: dict[int, float] = field(default_factory=dict)


def prompt_len(context: int) -> int:
    """What a context leaves for the prompt."""
    return context - DECODE_TOKENS - 1


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Random token ids, the same for the same arguments."""
    generator = random.Random(f"{count} {length} {seed}")
    return [[generator.randrange(VOCAB_SIZE) for _ in range(length)] for _ in range(count)]
