"""What else runs, where blocks lie, how a prompt is cut, preemption and moves: none of it changes a token.

As architecture.md promises it for a real model in fp32: equal up to the first position where the choice was a
near-tie; such positions are counted, and few.
"""

import itertools
import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from services.worker.checkpoint.loader import LoadedModel
from tests.qualification.all_workers import BLOCK_SIZE, NUM_BLOCKS
from tests.qualification.continuations import NearTies, block_tables, random_tokens
from tests.qualification.grpc_worker import GrpcWorker
from tests.unit.worker.step.steps import Executor, Generation, advance, make_runner, run_generations

NAMES = ("v2_plain", "v2_grouped_yarn", "v3_grouped_yarn", "v3_no_shared_experts")
NUM_NEW = 24
PROMPT_LENS = (33, 1, 16, 17, 64, 33, 5, 40, 31, 2)
CHUNKS = (1, 3, 16, 17)
# After so many steps, what has not ended ends undisturbed.
LAST_INTERRUPTION = 50
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 20},
    {"temperature": 0.6, "min_p": 0.05},
)


def undisturbed(loaded: LoadedModel) -> list[Generation]:
    """Each alone in a fresh cache, its prompt whole, its blocks in order."""
    generations = []
    for key, prompt_len in enumerate(PROMPT_LENS):
        prompt = random_tokens(prompt_len, seed=key % 5)
        params = {"seed": 100 + key, **SAMPLINGS[key % len(SAMPLINGS)]}
        generation = Generation(key, prompt, NUM_NEW, 64, list(range(1, 60)), params=params)
        run_generations(make_runner(loaded), [generation])
        generations.append(generation)
    return generations


@pytest.fixture(scope="module", params=NAMES)
def loaded(request: pytest.FixtureRequest, load_model: Callable[[str], LoadedModel]) -> LoadedModel:
    return load_model(request.param)


@pytest.fixture(scope="module")
def expected(loaded: LoadedModel) -> list[Generation]:
    return undisturbed(loaded)


def restarted(expected: list[Generation], chunk_of: Callable[[int], int]) -> list[Generation]:
    """The same generations before their first step, in scattered blocks, beginning one after the other."""
    tables = block_tables((length + NUM_NEW for length in PROMPT_LENS), BLOCK_SIZE, NUM_BLOCKS)
    generations = []
    for done, table in zip(expected, tables, strict=True):
        prompt = done.token_ids[: len(done.token_ids) - NUM_NEW]
        generations.append(
            Generation(
                done.key, prompt, NUM_NEW, chunk_of(done.key), table, first_step=done.key, params=done.params
            )
        )
    return generations


def compare(loaded: LoadedModel, expected: list[Generation], disturbed: list[Generation]) -> None:
    ties = NearTies(loaded)
    for one, other in zip(expected, disturbed, strict=True):
        ties.compare(one, other)
    assert ties.num_positions > 200
    assert ties.num_near_ties <= 0.02 * ties.num_positions
    assert ties.num_parted <= 1


@pytest.mark.parametrize("chunk", CHUNKS)
def test_mixed_batches_of_unrelated_histories_give_what_each_gives_alone(
    chunk: int, loaded: LoadedModel, expected: list[Generation]
) -> None:
    generations = restarted(expected, lambda key: chunk)
    run_generations(make_runner(loaded, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE), generations)
    compare(loaded, expected, generations)


def test_prompts_in_chunks_of_different_sizes_share_steps(
    loaded: LoadedModel, expected: list[Generation]
) -> None:
    generations = restarted(expected, lambda key: CHUNKS[key % len(CHUNKS)])
    run_generations(make_runner(loaded, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE), generations)
    compare(loaded, expected, generations)


def test_after_preemption_at_any_step_a_request_goes_on_with_the_same_tokens(
    loaded: LoadedModel, expected: list[Generation]
) -> None:
    generations = restarted(expected, lambda key: 16)
    run_with_interruptions(
        generations, [make_runner(loaded, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)], random.Random(7)
    )
    compare(loaded, expected, generations)


@pytest.mark.parametrize("where", ["in process", "over gRPC"])
def test_another_worker_goes_on_with_any_request(
    where: str, loaded: LoadedModel, expected: list[Generation], request: pytest.FixtureRequest
) -> None:
    generations = restarted(expected, lambda key: 17)
    with ExitStack() as stack:
        if where == "in process":
            workers: list[Executor] = [
                make_runner(loaded, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE) for _ in range(2)
            ]
        else:
            name = request.node.callspec.params["loaded"]
            addresses = request.getfixturevalue("worker_addresses")[name]
            workers = [stack.enter_context(GrpcWorker(address)) for address in addresses]
        run_with_interruptions(generations, workers, random.Random(8))
    compare(loaded, expected, generations)


def run_with_interruptions(
    generations: list[Generation], workers: list[Executor], numbers: random.Random
) -> None:
    """Between any two steps one request may lose its blocks; it starts over on any worker, in other blocks.

    Blocks that were lost go to the next who asks, with what the loser left in them.
    """
    homes = {generation.key: workers[0] for generation in generations}
    in_use = {block_id for generation in generations for block_id in generation.block_ids}
    spare = sorted(set(range(1, NUM_BLOCKS)) - in_use)
    for step_id in itertools.count():
        for worker in workers:
            own = [g for g in generations if homes[g.key] is worker and g.first_step <= step_id]
            if active := [generation for generation in own if not generation.is_finished]:
                advance(worker, active)
        if all(generation.is_finished for generation in generations):
            return
        victim = numbers.choice(generations)
        if step_id < LAST_INTERRUPTION and not victim.is_finished:
            num_blocks = len(victim.block_ids)
            taken, spare = spare[:num_blocks], victim.block_ids + spare[num_blocks:]
            homes[victim.key] = numbers.choice(workers)
            victim.restart(numbers.sample(taken, num_blocks))
