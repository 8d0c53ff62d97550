"""The whole model against transformers, on every kind of checkpoint."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from services.worker.backends.reference import ReferenceBackend
from services.worker.loader import LoadedModel, load_checkpoint
from tests.support.checkpoints import SIZES, VARIANTS
from tests.unit.worker.steps import Generation, all_logits, make_runner, run_generations

# Logits have a standard deviation of 8; fp32 leaves about 1e-4 between two orders of summation.
TOLERANCE = 5e-4
NUM_TOKENS = 70


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return [random.Random(f"{seed} {i}").randrange(SIZES["vocab_size"]) for i in range(count)]


@pytest.fixture(scope="module")
def expected_logits(transformers_model: Callable[[str], torch.nn.Module]) -> Callable[[str], torch.Tensor]:
    def compute(name: str) -> torch.Tensor:
        with torch.inference_mode():
            return transformers_model(name)(torch.tensor([random_tokens(NUM_TOKENS)])).logits[0]

    return compute


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("chunk", [1, 3, 16, 17, NUM_TOKENS])
def test_chunks_of_any_size_give_the_logits_of_transformers(
    name: str,
    chunk: int,
    load_model: Callable[[str], LoadedModel],
    expected_logits: Callable[[str], torch.Tensor],
) -> None:
    logits = all_logits(load_model(name), random_tokens(NUM_TOKENS), chunk)
    torch.testing.assert_close(logits, expected_logits(name), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", VARIANTS)
def test_greedy_continuations_in_mixed_batches_equal_those_of_transformers(
    name: str,
    load_model: Callable[[str], LoadedModel],
    transformers_model: Callable[[str], torch.nn.Module],
) -> None:
    num_new, prompt_lens, chunks = 32, [1, 5, 23, 40, 16, 2], [1, 3, 16, 17, 64, 2]
    block_ids = list(range(1, 160))
    random.Random(1).shuffle(block_ids)
    generations = []
    for key, (prompt_len, chunk) in enumerate(zip(prompt_lens, chunks, strict=True)):
        own = [block_ids.pop() for _ in range((prompt_len + num_new) // 4 + 1)]
        prompt = random_tokens(prompt_len, seed=key)
        # One table reversed, the others in no order; each begins in another step.
        table = sorted(own, reverse=True) if key == 0 else own
        generations.append(Generation(key, prompt, num_new, chunk, table, first_step=key))
    prompts = [list(generation.token_ids) for generation in generations]
    run_generations(make_runner(load_model(name), num_blocks=160), generations)
    for prompt, generation in zip(prompts, generations, strict=True):
        expected, margin = greedy_of_transformers(transformers_model(name), prompt, num_new)
        assert margin > TOLERANCE, "the checkpoint has near-ties, which prove nothing"
        assert generation.outputs == expected


def greedy_of_transformers(
    model: torch.nn.Module, prompt: list[int], num_new: int
) -> tuple[list[int], float]:
    """The continuation, and the smallest distance between the two best logits on the way."""
    config = GenerationConfig(
        max_new_tokens=num_new, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    inputs = torch.tensor([prompt])
    result = model.generate(inputs, attention_mask=torch.ones_like(inputs), generation_config=config)
    best = torch.stack(result.logits).topk(2).values
    return result.sequences[0, len(prompt) :].tolist(), float((best[..., 0] - best[..., 1]).min())


def test_bfloat16_weights_stay_close_to_fp32(
    checkpoint_folder: Callable[[str], Path], expected_logits: Callable[[str], torch.Tensor]
) -> None:
    loaded = load_checkpoint(
        checkpoint_folder("v2_one_head"),
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        backend=ReferenceBackend(),
    )
    logits = all_logits(loaded, random_tokens(NUM_TOKENS), 16)
    similarity = torch.nn.functional.cosine_similarity(logits, expected_logits("v2_one_head"), dim=-1)
    # A router in bfloat16 would send many tokens to other experts; a few near-ties remain.
    assert similarity.median() > 0.995
