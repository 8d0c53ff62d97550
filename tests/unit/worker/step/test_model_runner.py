"""ModelRunner: what a step leaves behind, what it reports, and what one bad sequence does to the others."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from triptych.v1 import types_pb2, worker_pb2

from services.worker.checkpoint.loader import LoadedModel
from services.worker.step import model_runner
from services.worker.step.model_runner import ModelRunner
from shared.errors import Reason, ServiceError
from tests.unit.worker.step.steps import all_logits, make_runner, sampling

BLOCK_SIZE = 4
PROMPT = [random.Random(5).randrange(199) for _ in range(30)]
# Bits may differ between batches: matmuls are not batch-invariant.
CLOSE: dict[str, Any] = {"rel": 1e-4, "abs": 1e-4}


@pytest.fixture(scope="module")
def loaded(load_model: Callable[[str], LoadedModel]) -> LoadedModel:
    return load_model("v3_grouped_yarn")


def sequence_step(
    key: int, token_ids: list[int], blocks: list[int], context_len: int = 0, **values: Any
) -> worker_pb2.SequenceStep:
    num_blocks = -(-(context_len + len(token_ids)) // BLOCK_SIZE)
    return worker_pb2.SequenceStep(
        sequence_key=key,
        token_ids=token_ids,
        context_len=context_len,
        block_ids=blocks[:num_blocks],
        **values,
    )


def last_sampling(token_ids: list[int]) -> list[worker_pb2.SamplingStep]:
    return [sampling(query_index=len(token_ids) - 1, logprobs=3)]


def execute(runner: ModelRunner, *sequences: worker_pb2.SequenceStep, **values: Any) -> worker_pb2.StepResult:
    return runner.execute(worker_pb2.Step(step_id=7, sequences=sequences, **values))


def rows_of(runner: ModelRunner) -> torch.Tensor:
    """The cache's own tensor, [layers, blocks, block_size, row]."""
    return runner._cache._blocks


def assert_same_choice(one: worker_pb2.Sample, other: worker_pb2.Sample) -> None:
    assert one.token_id == other.token_id
    assert one.logprobs.token.logprob == pytest.approx(other.logprobs.token.logprob, **CLOSE)


def test_a_result_answers_its_step_in_order(loaded: LoadedModel) -> None:
    runner = make_runner(loaded)
    samplings = [sampling(query_index=i) for i in (3, 0, 3)]
    result = execute(
        runner,
        sequence_step(9, PROMPT[:4], [5], samplings=samplings),
        sequence_step(4, PROMPT[:9], [1, 2, 3]),
    )
    assert result.step_id == 7
    assert [sequence.sequence_key for sequence in result.sequences] == [9, 4]
    assert [len(sequence.samples) for sequence in result.sequences] == [3, 0]
    expected = all_logits(loaded, PROMPT[:4], 4).argmax(-1).tolist()
    assert [sample.token_id for sample in result.sequences[0].samples] == [
        expected[3],
        expected[0],
        expected[3],
    ]
    timings = result.timings
    assert min(timings.prepare_seconds, timings.forward_seconds, timings.sample_seconds) > 0
    assert timings.queue_seconds == 0


def test_a_malformed_step_writes_nothing(loaded: LoadedModel) -> None:
    runner = make_runner(loaded)
    execute(runner, sequence_step(1, PROMPT[:8], [1, 2]))
    before = rows_of(runner).clone()
    copies = [worker_pb2.BlockCopy(source_block_id=1, target_block_id=3)]
    with pytest.raises(ServiceError) as caught:
        execute(
            runner,
            sequence_step(1, PROMPT[:8], [4, 5]),
            sequence_step(2, [*PROMPT[:7], 199], [6, 7]),
            block_copies=copies,
        )
    assert caught.value.reason is Reason.MALFORMED_STEP
    assert torch.equal(rows_of(runner), before)


def test_only_a_sequences_own_slots_are_written(loaded: LoadedModel) -> None:
    runner = make_runner(loaded)
    rows_of(runner).fill_(7.0)
    execute(runner, sequence_step(1, PROMPT[:6], [5, 3]))
    changed = (rows_of(runner) != 7.0).any(-1).nonzero()[:, 1:].unique(dim=0).tolist()
    assert changed == [[3, 0], [3, 1], [5, 0], [5, 1], [5, 2], [5, 3]]


def test_nan_in_unused_slots_changes_nothing(loaded: LoadedModel) -> None:
    """0 × NaN is NaN: a masked value row must not take part at all (pitfall M9)."""
    results = []
    for is_poisoned in (False, True):
        runner = make_runner(loaded)
        if is_poisoned:
            rows_of(runner)[:, 1:] = torch.nan
        samples = []
        # Chunks, mixed ones, and decodes of two lengths in one group, of which the shorter is padded.
        for first, second in (((0, 5), (0, 2)), ((5, 9), (2, 3)), ((9, 26), (3, 11)), ((26, 27), (11, 12))):
            steps = [
                sequence_step(
                    key,
                    PROMPT[slice(*span)],
                    blocks,
                    span[0],
                    samplings=last_sampling([0] * (span[1] - span[0])),
                )
                for key, span, blocks in (
                    (1, first, list(range(50, 58))),
                    (2, second, list(range(30, 20, -1))),
                )
            ]
            samples += [sequence.samples[0] for sequence in execute(runner, *steps).sequences]
        results.append(samples)
    assert results[0] == results[1]


def test_a_nan_row_fails_its_own_sample_only(loaded: LoadedModel) -> None:
    alone = make_runner(loaded)
    context = sequence_step(1, PROMPT[:10], [1, 2, 3])
    execute(alone, context)
    decode = sequence_step(1, [3], [1, 2, 3], 10, samplings=last_sampling([3]))
    expected = execute(alone, decode).sequences[0].samples[0]
    runner = make_runner(loaded)
    execute(runner, context, sequence_step(2, PROMPT[:6], [4, 5]))
    rows_of(runner)[0, 4, 1] = torch.nan
    bad = sequence_step(2, [3], [4, 5], 6, samplings=last_sampling([3]))
    result = execute(runner, bad, decode)
    error = result.sequences[0].samples[0].error
    assert error.reason == worker_pb2.SAMPLE_ERROR_REASON_LOGITS_NOT_FINITE
    assert_same_choice(result.sequences[1].samples[0], expected)
    # The bad sequence's blocks go to another one, which never sees the NaN left behind in them.
    reused = sequence_step(3, PROMPT[:5], [5, 4], samplings=last_sampling(PROMPT[:5]))
    assert_same_choice(
        execute(runner, reused).sequences[0].samples[0], execute(alone, reused).sequences[0].samples[0]
    )


def test_blocks_are_copied_before_anything_is_written(loaded: LoadedModel) -> None:
    runner = make_runner(loaded)
    execute(runner, sequence_step(1, PROMPT[:7], [1, 2]))
    # Two outputs of one prompt: both go on in the block that the prompt left half full.
    result = execute(
        runner,
        sequence_step(1, [11], [1, 2], 7, samplings=last_sampling([11])),
        sequence_step(2, [12], [1, 3], 7, samplings=last_sampling([12])),
        block_copies=[worker_pb2.BlockCopy(source_block_id=2, target_block_id=3)],
    )
    assert torch.equal(rows_of(runner)[:, 2, :3], rows_of(runner)[:, 3, :3])
    assert not torch.equal(rows_of(runner)[:, 2, 3], rows_of(runner)[:, 3, 3])
    for token_id, sequence in zip((11, 12), result.sequences, strict=True):
        expected = all_logits(loaded, [*PROMPT[:7], token_id], 8)[-1].argmax()
        assert sequence.samples[0].token_id == expected


@pytest.mark.parametrize("max_logits", [model_runner._MAX_LOGITS, 199 * 3], ids=["at once", "in chunks"])
@pytest.mark.parametrize("chunk", [1, 3, 16, 30])
def test_prompt_logprobs_cover_every_position_once_across_chunks(
    loaded: LoadedModel, chunk: int, max_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "_MAX_LOGITS", max_logits)
    runner = make_runner(loaded)
    reported: list[types_pb2.PositionLogprobs] = []
    for start in range(0, len(PROMPT), chunk):
        stop = min(start + chunk, len(PROMPT))
        following = {"next_token_id": PROMPT[stop]} if stop < len(PROMPT) else {}
        step = sequence_step(
            1, PROMPT[start:stop], list(range(20, 1, -1)), start, prompt_logprobs=2, **following
        )
        reported += execute(runner, step).sequences[0].prompt_logprobs
    expected = all_logits(loaded, PROMPT, 30).log_softmax(-1)
    assert [position.token.token_id for position in reported] == PROMPT[1:]
    for i, position in enumerate(reported):
        row = expected[i]
        assert position.token.logprob == pytest.approx(float(row[PROMPT[i + 1]]), **CLOSE)
        assert position.token.rank == 1 + int((row > row[PROMPT[i + 1]]).sum())
        assert [top.token_id for top in position.top] == row.topk(2).indices.tolist()


def test_prompt_logprobs_of_a_nan_row_are_finite(loaded: LoadedModel) -> None:
    runner = make_runner(loaded)
    execute(runner, sequence_step(1, PROMPT[:4], [1]))
    rows_of(runner)[0, 1] = torch.nan
    result = execute(runner, sequence_step(1, PROMPT[4:7], [1, 2], 4, prompt_logprobs=1))
    entries = [
        entry for position in result.sequences[0].prompt_logprobs for entry in (position.token, *position.top)
    ]
    assert len(entries) == 4
    assert all(math.isfinite(entry.logprob) for entry in entries)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried"
        ),
    ],
)
def test_a_lack_of_memory_is_told_as_such(
    loaded: LoadedModel, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner(loaded)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(loaded.model, "forward", fail)
    with pytest.raises(ServiceError) as caught:
        execute(runner, sequence_step(1, [1], [1]))
    assert caught.value.reason is Reason.OUT_OF_MEMORY


def test_a_real_lack_of_memory_is_told_as_such(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner(loaded)
    monkeypatch.setattr(loaded.model, "forward", lambda *_: torch.empty(2**48))
    with pytest.raises(ServiceError) as caught:
        execute(runner, sequence_step(1, [1], [1]))
    assert caught.value.reason is Reason.OUT_OF_MEMORY


def test_other_errors_are_not_mistaken_for_it(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner(loaded)
    monkeypatch.setattr(loaded.model, "forward", lambda *_: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError):
        execute(runner, sequence_step(1, [1], [1]))


def test_model_info_describes_the_model_and_its_limits(loaded: LoadedModel) -> None:
    info = make_runner(loaded, num_blocks=12).model_info()
    assert (info.vocab_size, info.block_size, info.num_blocks) == (199, BLOCK_SIZE, 12)
    # The model's own context is shorter than what was asked for.
    assert info.max_model_len == loaded.config.max_position_embeddings == 512
    # Layers × block size × row × 4 bytes.
    assert info.bytes_per_block == 3 * BLOCK_SIZE * (64 + 16) * 4
    assert (info.device, info.weight_dtype, info.backend) == ("cpu", "float32", "reference")
    assert list(info.eos_token_ids) == [1]
    assert len(info.model_fingerprint) == 64
    assert (info.tokenizer_fingerprint, info.model) == ("", "")
