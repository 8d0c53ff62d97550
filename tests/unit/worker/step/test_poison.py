"""--poison-cache: results stay as they are, and a read of what nobody owns shows."""

from collections.abc import Callable

import pytest
import torch

from services.worker.backends.reference import attention_plan
from services.worker.checkpoint.loader import LoadedModel
from services.worker.step.model_runner import ModelRunner
from tests.unit.worker.step.steps import Generation, run_generations

BLOCK_SIZE = 4


def generations() -> list[Generation]:
    """Long and short prompts in chunks, greedy and drawn; blocks in an order of no pattern."""
    numbers = torch.randperm(120, generator=torch.Generator().manual_seed(1)).add(1).tolist()
    made = [
        Generation(
            key,
            [7 * key + i for i in range(prompt_len)],
            num_to_generate,
            chunk,
            numbers[key * 12 : (key + 1) * 12],
            params={"temperature": 0.5 * (key % 2), "seed": key},
        )
        for key, (prompt_len, chunk, num_to_generate) in enumerate(
            ((37, 16, 8), (1, 1, 8), (9, 3, 20), (20, 64, 8))
        )
    ]
    # The last one begins when the first has ended, in its blocks.
    made[3].block_ids, made[3].first_step = made[0].block_ids, 12
    return made


def runner(loaded: LoadedModel, *, poison_cache: bool) -> ModelRunner:
    return ModelRunner(
        loaded,
        num_blocks=130,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=4096,
        max_model_len=512,
        poison_cache=poison_cache,
    )


@pytest.mark.parametrize("name", ["v2_plain", "v3_grouped_yarn"])
def test_results_are_finite_and_equal(name: str, load_model: Callable[[str], LoadedModel]) -> None:
    outputs = []
    for poison_cache in (False, True):
        made = generations()
        run_generations(runner(load_model(name), poison_cache=poison_cache), made, block_size=BLOCK_SIZE)
        outputs.append([generation.outputs for generation in made])
    assert outputs[0] == outputs[1]


def test_a_reader_of_unused_slots_gets_nan(
    load_model: Callable[[str], LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_plan, "NULL_BLOCK", 125)
    poisoned = runner(load_model("v2_plain"), poison_cache=True)
    steps = [
        Generation(key, [1] * length, 4, 64, [2 * key + 1, 2 * key + 2]) for key, length in ((0, 1), (1, 5))
    ]
    with pytest.raises(AssertionError, match="not finite"):
        run_generations(poisoned, steps, block_size=BLOCK_SIZE)


def test_slots_behind_the_context_are_poisoned_in_every_layer_and_the_null_block_is_not(
    load_model: Callable[[str], LoadedModel],
) -> None:
    poisoned = runner(load_model("v2_plain"), poison_cache=True)
    generation = Generation(0, list(range(6)), 1, 64, [9, 4])
    run_generations(poisoned, [generation], block_size=BLOCK_SIZE)
    rows = poisoned._cache._blocks.isnan().any(-1)
    written = {(9, 0), (9, 1), (9, 2), (9, 3), (4, 0), (4, 1)}
    for layer in rows:
        finite = {(block, offset) for block, offset in (~layer).nonzero().tolist()}
        assert finite == written | {(0, offset) for offset in range(BLOCK_SIZE)}
    # The sequence lost its blocks; another gets one of them, of which a single row is its own.
    run_generations(poisoned, [Generation(1, [5], 1, 64, [4])], block_size=BLOCK_SIZE)
    assert poisoned._cache._blocks.isnan().any(-1)[:, 4].tolist() == [[False, True, True, True]] * len(rows)
