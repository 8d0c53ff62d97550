"""Every kind of checkpoint against transformers: logits, and greedy continuations in mixed batches.

In process, and through sessions of a worker process, over which log-probabilities stand for logits.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from triptych.v1 import types_pb2, worker_pb2

from services.worker.checkpoint.loader import LoadedModel
from services.worker.model.configuration import ModelConfig
from tests.qualification.all_workers import BLOCK_SIZE, NUM_BLOCKS
from tests.qualification.continuations import NEAR_TIE, TOLERANCE, block_tables, greedy_margins, random_tokens
from tests.qualification.grpc_worker import GrpcWorker
from tests.support.checkpoint_variants import VARIANTS
from tests.support.checkpoints import write_checkpoint
from tests.unit.worker.step.steps import Executor, Generation, all_logits, make_runner, run_generations

NUM_TOKENS = 70
NUM_NEW = 64
# Prompt lengths and the chunks they come in; each begins in another step.
PROMPTS = [(1, 1), (5, 3), (23, 16), (40, 17), (16, 64), (2, 2)]
OpenExecutor = Callable[[str], AbstractContextManager[Executor]]


@pytest.fixture(params=["in process", "over gRPC"])
def open_executor(request: pytest.FixtureRequest) -> OpenExecutor:
    """What runs steps of a variant."""
    is_in_process = request.param == "in process"
    load_model = request.getfixturevalue("load_model")
    addresses = {} if is_in_process else request.getfixturevalue("worker_addresses")

    @contextmanager
    def opened(name: str) -> Iterator[Executor]:
        if is_in_process:
            yield make_runner(load_model(name), num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
            return
        with GrpcWorker(addresses[name][0]) as worker:
            yield worker

    return opened


@pytest.fixture(scope="module")
def expected_logits(transformers_model: Callable[[str], torch.nn.Module]) -> Callable[[str], torch.Tensor]:
    """Of transformers, for one prompt."""

    def compute(name: str) -> torch.Tensor:
        with torch.inference_mode():
            return transformers_model(name)(torch.tensor([random_tokens(NUM_TOKENS)])).logits[0]

    return compute


@pytest.mark.parametrize("name", VARIANTS)
def test_chunks_of_any_size_give_the_logits_of_transformers(
    name: str,
    load_model: Callable[[str], LoadedModel],
    expected_logits: Callable[[str], torch.Tensor],
) -> None:
    expected = expected_logits(name)
    for chunk in (1, 3, 16, 17, NUM_TOKENS):
        logits = all_logits(load_model(name), random_tokens(NUM_TOKENS), chunk)
        torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", VARIANTS)
def test_prompt_logprobs_are_those_of_transformers(
    name: str, open_executor: OpenExecutor, expected_logits: Callable[[str], torch.Tensor]
) -> None:
    token_ids = random_tokens(NUM_TOKENS)
    expected = expected_logits(name).log_softmax(-1)
    block_ids = block_tables([NUM_TOKENS], BLOCK_SIZE, NUM_BLOCKS)[0]
    reported: list[types_pb2.PositionLogprobs] = []
    start = 0
    with open_executor(name) as executor:
        for step_id, chunk in enumerate((17, 1, 3, 48, 1)):
            stop = start + chunk
            sequence = worker_pb2.SequenceStep(
                token_ids=token_ids[start:stop],
                context_len=start,
                block_ids=block_ids[: -(-stop // BLOCK_SIZE)],
                prompt_logprobs=5,
                next_token_id=token_ids[stop] if stop < NUM_TOKENS else None,
            )
            result = executor.execute(worker_pb2.Step(step_id=step_id, sequences=[sequence]))
            reported += result.sequences[0].prompt_logprobs
            start = stop
    assert [position.token.token_id for position in reported] == token_ids[1:]
    for row, position in zip(expected, reported, strict=False):
        for entry in (position.token, *position.top):
            assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=TOLERANCE)
        best = row.topk(5).values.tolist()
        assert [entry.logprob for entry in position.top] == pytest.approx(best, abs=TOLERANCE)


@pytest.mark.parametrize("name", VARIANTS)
def test_greedy_continuations_in_mixed_batches_equal_those_of_transformers(
    name: str, open_executor: OpenExecutor, transformers_model: Callable[[str], torch.nn.Module]
) -> None:
    tables = block_tables((length + NUM_NEW for length, _ in PROMPTS), BLOCK_SIZE, NUM_BLOCKS)
    generations = [
        Generation(key, random_tokens(length, seed=key), NUM_NEW, chunk, table, first_step=key)
        for key, ((length, chunk), table) in enumerate(zip(PROMPTS, tables, strict=True))
    ]
    with open_executor(name) as executor:
        run_generations(executor, generations, block_size=BLOCK_SIZE)
    num_near_ties = 0
    for (prompt_len, _), generation in zip(PROMPTS, generations, strict=True):
        with torch.inference_mode():
            logits = transformers_model(name)(torch.tensor([generation.token_ids])).logits[0]
        expected, margins = greedy_margins(logits, prompt_len, generation.outputs)
        for output, best, margin in zip(generation.outputs, expected, margins.tolist(), strict=True):
            assert output == best or margin < NEAR_TIE
        num_near_ties += int((margins < NEAR_TIE).sum())
    # Of 384 tokens: more, and the comparison would prove little.
    assert num_near_ties <= 2


@pytest.mark.parametrize("name", VARIANTS)
def test_both_forms_of_config_json_give_one_model(name: str, tmp_path: Path) -> None:
    configs = [
        ModelConfig.from_folder(
            write_checkpoint(replace(VARIANTS[name], is_original_form=is_original), tmp_path / form)
        )
        for form, is_original in (("transformers", False), ("original", True))
    ]
    assert configs[0] == configs[1]
