"""The sampler against the contract, spelled out in sampling_reference.py."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triptych.v1 import worker_pb2

from services.worker.sampling import sampler
from services.worker.sampling.sampler import sample
from tests.unit.worker.sampling.sampling_reference import distribution, draw
from tests.unit.worker.step.steps import sampling

VOCAB_SIZE = 300
# Where a draw is this close to a boundary, fp32 and fp64 may disagree.
NEAR_TIE = 1e-6


def random_logits(rows: int, seed: int, vocab_size: int = VOCAB_SIZE, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def token_of(logits: torch.Tensor, step: worker_pb2.SamplingStep) -> int:
    result = sample(logits.reshape(1, -1), [0], [step])[0]
    assert result.WhichOneof("outcome") == "token_id", result
    return result.token_id


def ids_and_values(values: st.SearchStrategy[float]) -> st.SearchStrategy[dict[int, float]]:
    return st.dictionaries(st.integers(0, VOCAB_SIZE - 1), values, max_size=20)


SAMPLINGS = st.builds(
    sampling,
    temperature=st.sampled_from([0.0, 1e-40, 1e-10, 1e-5, 1e-3, 0.3, 1.0, 2.5]),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 5, 127, 128, 129, VOCAB_SIZE - 1, VOCAB_SIZE, 2**32 - 1]),
    min_p=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, -2.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -1.0, 2.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.5, 1.3]),
    prompt_token_ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=20, unique=True),
    output_token_counts=ids_and_values(st.integers(1, 9)),
    logit_bias=ids_and_values(st.sampled_from([-100.0, -1.0, 5.0, 100.0])),
    banned_token_ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=20),
    allowed_token_mask=st.one_of(st.just(b""), st.binary(min_size=8, max_size=VOCAB_SIZE // 8)),
    seed=st.integers(0, 2**64 - 1),
    num_output_tokens=st.integers(0, 2**32 - 1),
)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(SAMPLINGS, min_size=1, max_size=5), seed=st.integers(0, 1000))
def test_any_mix_of_parameters_gives_what_the_contract_says(
    steps: list[worker_pb2.SamplingStep], seed: int
) -> None:
    logits = random_logits(len(steps), seed)
    results = sample(logits, range(len(steps)), steps)
    for row, step, result in zip(logits.numpy(), steps, results, strict=True):
        if not len(distribution(row, step)[0]):
            assert result.error.reason == worker_pb2.SAMPLE_ERROR_REASON_NOTHING_ALLOWED
            continue
        expected, distance = draw(row, step)
        assert result.token_id == expected or distance < NEAR_TIE


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(SAMPLINGS, min_size=2, max_size=6), seed=st.integers(0, 1000))
def test_a_sample_is_the_same_alone_and_in_any_batch(steps: list[worker_pb2.SamplingStep], seed: int) -> None:
    logits = random_logits(len(steps), seed)
    together = sample(logits, range(len(steps)), steps)
    reversed_rows = list(range(len(steps)))[::-1]
    backwards = sample(logits, reversed_rows, steps[::-1])[::-1]
    alone = [sample(logits[i : i + 1], [0], [step])[0] for i, step in enumerate(steps)]
    assert together == backwards == alone


def test_the_best_few_give_what_the_whole_row_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    # Flat logits need far more than the candidates, steep ones far fewer.
    steps = [
        sampling(temperature=t, top_p=p, min_p=m, top_k=k, seed=i, num_output_tokens=i)
        for i, (t, p, m, k) in enumerate(
            (t, p, m, k)
            for t in (0.2, 1.0, 5.0)
            for p in (0.5, 0.99, 1.0)
            for m in (0.0, 0.1)
            for k in (0, 90, 2000)
        )
    ]
    logits = random_logits(len(steps), 1, vocab_size=3000)
    results = []
    for num_candidates in (sampler.NUM_CANDIDATES, 1, 3000):
        monkeypatch.setattr(sampler, "NUM_CANDIDATES", num_candidates)
        results.append(sample(logits, range(len(steps)), steps))
    assert results[0] == results[1] == results[2]


def test_draws_follow_the_distribution() -> None:
    row = random_logits(1, 5, vocab_size=50, scale=1.5)
    steps = [sampling(temperature=0.8, top_p=0.9, seed=77, num_output_tokens=i) for i in range(20_000)]
    order, p = distribution(row[0].numpy(), steps[0])
    tokens = [result.token_id for result in sample(row, [0] * len(steps), steps)]
    counts = np.bincount(tokens, minlength=50)[order]
    assert counts.sum() == len(steps)
    expected = p * len(steps)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    degrees = len(order) - 1
    # A chi-square's 99.9 % quantile, by Wilson and Hilferty.
    assert chi_square < degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3


@pytest.mark.parametrize("temperature", [0.0, 1e-40, 1e-10, 1e-6])
def test_tiny_temperatures_take_the_lowest_id_among_the_largest(temperature: float) -> None:
    logits = torch.zeros(VOCAB_SIZE)
    logits[[200, 40, 41]] = 2.0
    assert token_of(logits, sampling(temperature=temperature, seed=3)) == 40


@pytest.mark.parametrize(
    "values", [{"top_p": 1e-30}, {"min_p": 1.0}, {"top_k": 1}], ids=["top_p", "min_p", "top_k"]
)
def test_the_strictest_filters_keep_the_best_token(values: dict[str, float]) -> None:
    logits = random_logits(1, 8)[0]
    assert token_of(logits, sampling(temperature=3.0, seed=1, **values)) == int(logits.argmax())


def test_equal_logits_are_drawn_by_rising_id() -> None:
    step = sampling(temperature=1.0, seed=11, num_output_tokens=2)
    expected, _ = draw(np.zeros(VOCAB_SIZE), step)
    assert token_of(torch.zeros(VOCAB_SIZE), step) == expected


def test_one_infinite_logit_is_the_token() -> None:
    logits = random_logits(1, 2)[0]
    logits[17] = torch.inf
    for temperature in (0.0, 1.0):
        assert token_of(logits, sampling(temperature=temperature)) == 17


@pytest.mark.parametrize("row", ["nan", "no finite"])
def test_a_bad_row_fails_alone(row: str) -> None:
    logits = random_logits(3, 4)
    good = sample(logits, [0, 2], [sampling(temperature=1.0, seed=1), sampling()])
    logits[1] = -torch.inf if row == "no finite" else logits[1]
    logits[1, 5] = torch.nan if row == "nan" else -torch.inf
    results = sample(logits, [0, 1, 2], [sampling(temperature=1.0, seed=1), sampling(logprobs=2), sampling()])
    assert results[1].error.reason == worker_pb2.SAMPLE_ERROR_REASON_LOGITS_NOT_FINITE
    assert [results[0], results[2]] == good


def test_several_samplings_share_a_row() -> None:
    logits = random_logits(2, 6)
    steps = [sampling(temperature=1.0, seed=seed) for seed in range(20)]
    tokens = [result.token_id for result in sample(logits, [1] * 20, steps)]
    assert tokens == [draw(logits[1].numpy(), step)[0] for step in steps]
    assert len(set(tokens)) > 1


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = random_logits(1, 9)
    expected = torch.log_softmax(logits[0].double(), -1)
    order = logits[0].argsort(descending=True).tolist()
    for temperature in (0.0, 0.1, 2.0):
        step = sampling(temperature=temperature, seed=4, logit_bias={order[50]: 100.0}, logprobs=5)
        result = sample(logits, [0], [step])[0]
        assert result.token_id == order[50]
        assert result.logprobs.token.rank == 51
        assert result.logprobs.token.logprob == pytest.approx(float(expected[order[50]]), abs=1e-5)
        assert [top.token_id for top in result.logprobs.top] == order[:5]
        assert [top.rank for top in result.logprobs.top] == [1, 2, 3, 4, 5]
        assert [top.logprob for top in result.logprobs.top] == pytest.approx(
            expected[order[:5]].tolist(), abs=1e-5
        )


def test_logprobs_are_finite_and_ranked_whatever_the_logits() -> None:
    logits = torch.full((1, VOCAB_SIZE), -torch.inf)
    logits[0, 7], logits[0, 9] = torch.inf, 3e38
    result = sample(logits, [0], [sampling(logprobs=20, banned_token_ids=[7])])[0]
    assert result.token_id == 9
    reported = [result.logprobs.token, *result.logprobs.top]
    assert all(np.isfinite(entry.logprob) for entry in reported)
    assert [entry.token_id for entry in result.logprobs.top] == [7, 9, *range(7), 8, *range(10, 20)]


def test_logprobs_zero_reports_the_token_alone() -> None:
    result = sample(random_logits(1, 1), [0], [sampling(logprobs=0)])[0]
    assert result.HasField("logprobs")
    assert result.logprobs.token.token_id == result.token_id
    assert not result.logprobs.top
