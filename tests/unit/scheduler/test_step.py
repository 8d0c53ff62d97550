"""build_step and parse_result: the core's step on the wire and back."""

from collections.abc import Callable
from typing import Any

import pytest
from triptych.v1 import types_pb2, worker_pb2

from services.scheduler.core.request import Request, Sequence
from services.scheduler.core.scheduler_output import (
    SampledToken,
    SampleFailure,
    ScheduledSequence,
    SchedulerOutput,
)
from services.scheduler.step import build_step, parse_result

BLOCK_SIZE = 4


def make_sequence(
    prompt: tuple[int, ...] = (5, 6, 7, 5, 8), output: tuple[int, ...] = (), **fields: Any
) -> Sequence:
    """A sequence that has enough blocks: 11, 12, …"""
    request = Request("g", "r", prompt, max_tokens=9, seeds=(99,), arrival_time=0.0, **fields)
    sequence = request.sequences[0]
    sequence.output_token_ids = list(output)
    sequence.block_ids = list(range(11, 11 + 5))
    return sequence


def built(sequence: Sequence, context_len: int, num_tokens: int) -> worker_pb2.SequenceStep:
    output = SchedulerOutput(0, (ScheduledSequence(sequence, context_len, num_tokens),))
    return build_step(output, BLOCK_SIZE, lambda request: worker_pb2.SamplingStep(top_k=3)).sequences[0]


# Building.


def test_a_chunk_in_mid_prompt_carries_its_tokens_its_blocks_and_no_sampling() -> None:
    step = built(make_sequence(), context_len=1, num_tokens=3)
    assert list(step.token_ids) == [6, 7, 5]
    assert step.context_len == 1
    assert list(step.block_ids) == [11]
    assert list(step.samplings) == []
    assert step.request_id == "r"


def test_the_chunk_that_ends_the_prompt_samples_from_its_last_token() -> None:
    step = built(make_sequence(), context_len=3, num_tokens=2)
    assert list(step.block_ids) == [11, 12]
    assert [(each.query_index, each.top_k) for each in step.samplings] == [(1, 3)]


def test_a_decode_carries_the_newest_token() -> None:
    step = built(make_sequence(output=(21, 22, 23)), context_len=7, num_tokens=1)
    assert (list(step.token_ids), list(step.block_ids)) == ([23], [11, 12])
    assert (step.samplings[0].query_index, step.samplings[0].num_output_tokens) == (0, 3)


def test_a_recomputation_crosses_from_the_prompt_into_the_output() -> None:
    step = built(make_sequence(output=(21, 22)), context_len=4, num_tokens=3)
    assert list(step.token_ids) == [8, 21, 22]


def test_sequences_are_keyed_by_their_place() -> None:
    scheduled = tuple(ScheduledSequence(make_sequence(), 0, 5) for _ in range(3))
    step = build_step(SchedulerOutput(0, scheduled), BLOCK_SIZE, lambda request: worker_pb2.SamplingStep())
    assert [each.sequence_key for each in step.sequences] == [0, 1, 2]


def test_prompt_logprobs_reach_across_the_border_of_a_chunk() -> None:
    first = built(make_sequence(prompt_logprobs=3), 0, 3)
    assert (first.prompt_logprobs, first.next_token_id) == (3, 5)
    last = built(make_sequence(prompt_logprobs=3), 3, 2)
    assert last.prompt_logprobs == 3
    assert not last.HasField("next_token_id")


def test_prompt_logprobs_that_were_reported_are_not_asked_for_again() -> None:
    sequence = make_sequence(output=(21,), prompt_logprobs=0)
    sequence.request.num_prompt_logprobs_reported = 4
    step = built(sequence, 0, 6)
    assert not step.HasField("prompt_logprobs")
    assert not step.HasField("next_token_id")


# Parsing.


def output_of(*scheduled: ScheduledSequence) -> SchedulerOutput:
    return SchedulerOutput(0, scheduled)


def result_of(*sequences: worker_pb2.SequenceResult) -> worker_pb2.StepResult:
    for key, sequence in enumerate(sequences):
        sequence.sequence_key = key
    return worker_pb2.StepResult(sequences=sequences)


def sampled(token_id: int, num_prompt_logprobs: int = 0) -> worker_pb2.SequenceResult:
    return worker_pb2.SequenceResult(
        samples=[worker_pb2.Sample(token_id=token_id)],
        prompt_logprobs=[types_pb2.PositionLogprobs()] * num_prompt_logprobs,
    )


def test_a_result_is_parsed_sequence_by_sequence() -> None:
    output = output_of(
        ScheduledSequence(make_sequence(), 0, 3),
        ScheduledSequence(make_sequence(), 0, 5),
        ScheduledSequence(make_sequence(), 0, 5),
        ScheduledSequence(make_sequence(prompt_logprobs=1), 0, 3),
    )
    failed = worker_pb2.SequenceResult(
        samples=[
            worker_pb2.Sample(
                error=worker_pb2.SampleError(
                    reason=worker_pb2.SAMPLE_ERROR_REASON_LOGITS_NOT_FINITE, message="a NaN"
                )
            )
        ]
    )
    positions = [
        types_pb2.PositionLogprobs(token=types_pb2.TokenLogprob(token_id=each)) for each in (1, 2, 3)
    ]
    result = result_of(
        worker_pb2.SequenceResult(),
        sampled(0),
        failed,
        worker_pb2.SequenceResult(prompt_logprobs=positions),
    )
    result.timings.queue_seconds = 9
    result.timings.prepare_seconds = 1
    result.timings.forward_seconds = 2
    result.timings.sample_seconds = 4
    parsed = parse_result(output, result, vocab_size=100)
    assert [each.sample for each in parsed.sequences] == [
        None,
        SampledToken(0),
        SampleFailure("SAMPLE_ERROR_REASON_LOGITS_NOT_FINITE: a NaN"),
        None,
    ]
    assert list(parsed.sequences[3].prompt_logprobs) == positions
    assert parsed.worker_seconds == 7  # the pass, not the wait for it


def test_log_probabilities_are_passed_on() -> None:
    result = result_of(sampled(5))
    result.sequences[0].samples[0].logprobs.token.token_id = 5
    (sequence,) = parse_result(output_of(ScheduledSequence(make_sequence(), 0, 5)), result, 100).sequences
    assert isinstance(sequence.sample, SampledToken)
    assert sequence.sample.logprobs is not None
    assert sequence.sample.logprobs.token.token_id == 5


def _second_key(result: worker_pb2.StepResult) -> None:
    result.sequences[0].sequence_key = 1


def _one_more_sequence(result: worker_pb2.StepResult) -> None:
    result.sequences.append(sampled(1))


def _no_sample(result: worker_pb2.StepResult) -> None:
    del result.sequences[0].samples[:]


def _two_samples(result: worker_pb2.StepResult) -> None:
    result.sequences[0].samples.add(token_id=1)


def _empty_sample(result: worker_pb2.StepResult) -> None:
    result.sequences[0].samples[0].ClearField("token_id")


def _token_past_the_vocabulary(result: worker_pb2.StepResult) -> None:
    result.sequences[0].samples[0].token_id = 100


def _one_position_less(result: worker_pb2.StepResult) -> None:
    del result.sequences[0].prompt_logprobs[0]


def _one_position_more(result: worker_pb2.StepResult) -> None:
    result.sequences[0].prompt_logprobs.add()


@pytest.mark.parametrize(
    "mangle",
    [
        _second_key,
        _one_more_sequence,
        _no_sample,
        _two_samples,
        _empty_sample,
        _token_past_the_vocabulary,
        _one_position_less,
        _one_position_more,
    ],
)
def test_a_result_that_does_not_answer_the_step_is_refused(
    mangle: Callable[[worker_pb2.StepResult], None],
) -> None:
    output = output_of(ScheduledSequence(make_sequence(prompt_logprobs=1), 0, 5))
    result = result_of(sampled(5, num_prompt_logprobs=4))
    parse_result(output, result, vocab_size=100)
    mangle(result)
    with pytest.raises(ValueError, match=r"keys|samples? |positions"):
        parse_result(output, result, vocab_size=100)
