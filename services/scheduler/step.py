"""The core's step as a message to the worker, and its result as the core understands it."""

from collections import Counter
from collections.abc import Mapping

from triptych.v1 import types_pb2, worker_pb2

from services.scheduler.core.request import Request, Sequence
from services.scheduler.core.scheduler_output import (
    ModelRunnerOutput,
    SampledToken,
    SampleFailure,
    ScheduledSequence,
    SchedulerOutput,
    SequenceOutput,
)


def fixed_sampling(request: Request, params: types_pb2.SamplingParams) -> worker_pb2.SamplingStep:
    """What all steps of a request have in common, so that each step copies it. `params` is resolved: all
    scalars that have a default are set."""
    sampling = worker_pb2.SamplingStep(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=params.logit_bias,
    )
    if params.HasField("logprobs"):
        sampling.logprobs = params.logprobs
    if params.repetition_penalty != 1:
        sampling.prompt_token_ids.extend(sorted(set(request.prompt_token_ids)))
    return sampling


def build_step(
    output: SchedulerOutput, block_size: int, sampling_of: Mapping[str, worker_pb2.SamplingStep]
) -> worker_pb2.Step:
    """`sampling_of`: what `fixed_sampling` made, by generation_id. sequence_key is the place in the step; the
    session numbers the step."""
    return worker_pb2.Step(
        sequences=[
            _sequence_step(key, scheduled, block_size, sampling_of[scheduled.sequence.request.generation_id])
            for key, scheduled in enumerate(output.scheduled)
        ],
    )


def parse_result(
    output: SchedulerOutput, result: worker_pb2.StepResult, vocab_size: int
) -> ModelRunnerOutput:
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
        sampling_step = step.samplings.add()
        sampling_step.CopyFrom(sampling)
        sampling_step.query_index = scheduled.num_scheduled_tokens - 1
        _resolve(sampling_step, sequence)
    if scheduled.wants_prompt_logprobs:
        assert request.prompt_logprobs is not None
        step.prompt_logprobs = request.prompt_logprobs
        if end < len(request.prompt_token_ids):
            step.next_token_id = request.prompt_token_ids[end]
    return step


def _resolve(sampling: worker_pb2.SamplingStep, sequence: Sequence) -> None:
    """Adds what depends on the tokens so far."""
    request, output_token_ids = sequence.request, sequence.output_token_ids
    sampling.seed = sequence.seed
    sampling.num_output_tokens = len(output_token_ids)
    if sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty:
        sampling.output_token_counts.update(Counter(output_token_ids))
    if len(output_token_ids) < request.min_tokens:
        sampling.banned_token_ids.extend(sorted(request.stop_token_ids))


def _sequence_output(
    scheduled: ScheduledSequence, result: worker_pb2.SequenceResult, vocab_size: int
) -> SequenceOutput:
    if len(result.samples) != scheduled.samples:
        raise ValueError(
            f"{len(result.samples)} samples for a sequence that asked for {int(scheduled.samples)}"
        )
    num_logprobs = _num_prompt_logprobs(scheduled)
    if len(result.prompt_logprobs) != num_logprobs:
        raise ValueError(
            f"log-probabilities of {len(result.prompt_logprobs)} prompt positions, not of {num_logprobs}"
        )
    sample = _sample(result.samples[0], vocab_size) if result.samples else None
    return SequenceOutput(sample, tuple(result.prompt_logprobs))


def _num_prompt_logprobs(scheduled: ScheduledSequence) -> int:
    """Of token_ids[1:], and of next_token_id where the prompt goes on."""
    if not scheduled.wants_prompt_logprobs:
        return 0
    end = scheduled.context_len + scheduled.num_scheduled_tokens
    has_next = end < len(scheduled.sequence.request.prompt_token_ids)
    return scheduled.num_scheduled_tokens - 1 + has_next


def _sample(sample: worker_pb2.Sample, vocab_size: int) -> SampledToken | SampleFailure:
    match sample.WhichOneof("outcome"):
        case "token_id" if sample.token_id < vocab_size:
            return SampledToken(sample.token_id, sample.logprobs if sample.HasField("logprobs") else None)
        case "error":
            reason = worker_pb2.SampleErrorReason.Name(sample.error.reason)
            return SampleFailure(f"{reason}: {sample.error.message}")
        case _:
            raise ValueError(f"a sample is {sample}; allowed: a token of the vocabulary, or an error")
