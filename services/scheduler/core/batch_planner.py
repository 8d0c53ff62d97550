"""Divides a step's tokens among running sequences.

Decodes come first, one token each, so that a long prefill never starves them. What is left goes to prefills
in order of arrival, each as large a chunk as fits: long prompts take turns in large chunks, since only long
chunks repay the cost of expanding their context.
"""

from collections.abc import Iterable

from services.scheduler.core.request import Sequence


def plan_running(running: Iterable[Sequence], token_budget: int) -> list[tuple[Sequence, int]]:
    """(sequence, number of tokens) for those that get any, in the order in which blocks are given."""
    decodes: list[Sequence] = []
    prefills: list[Sequence] = []
    for sequence in running:
        (decodes if sequence.num_uncomputed_tokens == 1 else prefills).append(sequence)
    plan: list[tuple[Sequence, int]] = []
    for sequence in decodes + prefills:
        num_tokens = min(sequence.num_uncomputed_tokens, token_budget)
        if num_tokens > 0:
            plan.append((sequence, num_tokens))
            token_budget -= num_tokens
    return plan
