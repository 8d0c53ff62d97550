"""The core's step as a message to the worker, and its result as the core understands it."""

from collections.abc import Callable
from typing import TypeAlias

from triptych.v1 import types_pb2, worker_pb2

from services.scheduler.core.request import Request
from services.scheduler.core.scheduler_output import (
    ModelRunnerOutput,
    SampledToken,
    SampleFailure,
    ScheduledSequence,
    SchedulerOutput,
    SequenceOutput,
)
from services.scheduler.sampling import add_sampling

# The log-probabilities that the core passes through.
Logprobs: TypeAlias = types_pb2.PositionLogprobs


def build_step(
    output: SchedulerOutput, block_size: int, sampling_of: Callable[[Request], worker_pb2.SamplingStep]
) -> worker_pb2.Step:
    """`sampling_of`: what common_sampling made of a request. sequence_key is the place in the step; the
    session numbers the step."""
    return worker_pb2.Step(
        sequences=[
            _sequence_step(key, scheduled, block_size, sampling_of(scheduled.sequence.request))
            for key, scheduled in enumerate(output.scheduled)
        ],
    )


def parse_result(
    output: SchedulerOutput, result: worker_pb2.StepResult, vocab_size: int
) -> ModelRunnerOutput[Logprobs]:
    """Raises ValueError if the result does not answer the step."""
    keys = [each.sequence_key for each in result.sequences]
    if keys != list(range(len(output.scheduled))):
        raise ValueError(
            f"the result's sequence keys are {keys}, the step has {len(output.scheduled)} sequences"
        )
    timings = result.timings
    return ModelRunnerOutput(
        tuple(
            _sequence_output(*pair, vocab_size)
            for pair in zip(output.scheduled, result.sequences, strict=True)
        ),
        timings.prepare_seconds + timings.forward_seconds + timings.sample_seconds,
    )


def _sequence_step(
    key: int, scheduled: ScheduledSequence, block_size: int, sampling: worker_pb2.SamplingStep
) -> worker_pb2.SequenceStep:
    sequence, request = scheduled.sequence, scheduled.sequence.request
    end = scheduled.context_len + scheduled.num_scheduled_tokens
    step = worker_pb2.SequenceStep(
        sequence_key=key,
        request_id=request.request_id,
        token_ids=sequence.token_ids(scheduled.context_len, end),
        context_len=scheduled.context_len,
        block_ids=sequence.block_ids[: -(-end // block_size)],
    )
    if scheduled.samples:
        add_sampling(step, sampling, sequence)
    if scheduled.wants_prompt_logprobs:
        assert request.prompt_logprobs is not None
        step.prompt_logprobs = request.prompt_logprobs
        if end < len(request.prompt_token_ids):
            step.next_token_id = request.prompt_token_ids[end]
    return step


def _sequence_output(
    scheduled: ScheduledSequence, result: worker_pb2.SequenceResult, vocab_size: int
) -> SequenceOutput[Logprobs]:
    if len(result.samples) != scheduled.samples:
        raise ValueError(
            f"{len(result.samples)} samples for a sequence that requested {int(scheduled.samples)}"
        )
    num_logprobs = _num_prompt_logprobs(scheduled)
    if len(result.prompt_logprobs) != num_logprobs:
        raise ValueError(
            f"log-probabilities of {len(result.prompt_logprobs)} prompt positions, not of {num_logprobs}"
        )
    sample = _sample(result.samples[0], vocab_size) if result.samples else None
    return SequenceOutput(sample, tuple(result.prompt_logprobs))


def _num_prompt_logprobs(scheduled: ScheduledSequence) -> int:
    """Of token_ids[1:], and of next_token_id where the prompt continues."""
    if not scheduled.wants_prompt_logprobs:
        return 0
    end = scheduled.context_len + scheduled.num_scheduled_tokens
    has_next = end < len(scheduled.sequence.request.prompt_token_ids)
    return scheduled.num_scheduled_tokens - 1 + has_next


def _sample(sample: worker_pb2.Sample, vocab_size: int) -> SampledToken[Logprobs] | SampleFailure:
    match sample.WhichOneof("outcome"):
        case "token_id" if sample.token_id < vocab_size:
            return SampledToken(sample.token_id, sample.logprobs if sample.HasField("logprobs") else None)
        case "error":
            reason = worker_pb2.SampleErrorReason.Name(sample.error.reason)
            return SampleFailure(f"{reason}: {sample.error.message}")
        case _:
            raise ValueError(f"a sample is {sample}; allowed: a token of the vocabulary, or an error")
