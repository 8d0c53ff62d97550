"""What a continuation is compared by, where logits may differ in their last bits (pitfall M14)."""

import random
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from services.worker.checkpoint.loader import LoadedModel
from tests.support.checkpoint_variants import SIZES
from tests.unit.worker.sampling.sampling_reference import draw
from tests.unit.worker.step.steps import Generation, all_logits

# Logits have a standard deviation of 8; fp32 leaves about 1e-4 between two orders of summation.
TOLERANCE = 5e-4
# The two best logits, or a draw's distance to the nearest boundary of the cumulative probability.
NEAR_TIE = 2 * TOLERANCE


def random_tokens(count: int, seed: int = 0) -> list[int]:
    """The same for the same arguments; a longer list begins as a shorter one."""
    return [random.Random(f"{seed} {i}").randrange(SIZES["vocab_size"]) for i in range(count)]


def block_tables(lengths: Iterable[int], block_size: int, num_blocks: int, seed: int = 1) -> list[list[int]]:
    """A table for each length, no block in two of them: scattered over the cache, the first one reversed."""
    free = list(range(1, num_blocks))
    random.Random(seed).shuffle(free)
    tables = [[free.pop() for _ in range(-(-length // block_size))] for length in lengths]
    tables[0].sort(reverse=True)
    return tables


def greedy_margins(
    logits: torch.Tensor, prompt_len: int, outputs: list[int]
) -> tuple[list[int], torch.Tensor]:
    """From logits of prompt and outputs together: the best token after each prefix, and the two bests' gap.

    Where the first list equals the outputs, they are the greedy continuation: by induction, each was the best
    after those before it.
    """
    rows = logits[prompt_len - 1 : prompt_len - 1 + len(outputs)]
    best = rows.topk(2).values
    return rows.argmax(-1).tolist(), best[:, 0] - best[:, 1]


@dataclass
class NearTies:
    """Counts where two runs of one generation may part, and where they do."""

    loaded: LoadedModel
    num_positions: int = 0
    num_near_ties: int = 0
    num_parted: int = 0

    def compare(self, undisturbed: Generation, disturbed: Generation) -> None:
        """Fails unless both give the same tokens up to the end, or to a near-tie."""
        prompt_len = len(undisturbed.token_ids) - len(undisturbed.outputs)
        logits = all_logits(self.loaded, undisturbed.token_ids, len(undisturbed.token_ids))
        for i, (one, other) in enumerate(zip(undisturbed.outputs, disturbed.outputs, strict=True)):
            row, step = logits[prompt_len - 1 + i], undisturbed.sampling_step(0, num_output_tokens=i)
            best = row.topk(2).values
            distance = draw(row.numpy(), step)[1] if step.temperature else float(best[0] - best[1])
            is_near_tie = distance < NEAR_TIE
            self.num_positions += 1
            self.num_near_ties += is_near_tie
            if one != other:
                assert is_near_tie, (
                    f"token {i} of {undisturbed.key} is {other}, undisturbed {one}: {distance}"
                )
                self.num_parted += 1
                return
