"""The core's step as a message to the worker, and its result as the core understands it."""

from collections import Counter
from collections.abc import Mapping

from triptych.v1 import types_pb2, worker_pb2

from services.scheduler.core.request import Sequence
from services.scheduler.core.scheduler_output import (
    ModelRunnerOutput,
    SampledToken,
    SampleFailure,
    ScheduledSequence,
    SchedulerOutput,
    SequenceOutput,
)


def build_step(
    output: SchedulerOutput, block_size: int, params_of: Mapping[str, types_pb2.SamplingParams]
) -> worker_pb2.Step:
    """`params_of`: resolved sampling parameters by generation_id. sequence_key is the place in the step; the
    session numbers the step."""
    return worker_pb2.Step(
        sequences=[
            _sequence_step(key, scheduled, block_size, params_of[scheduled.sequence.request.generation_id])
            for key, scheduled in enumerate(output.scheduled)
        ],
    )


def parse_result(output: SchedulerOutput, result: worker_pb2.StepResult) -> ModelRunnerOutput:
    """Raises ValueError if the result does not answer the step."""
    keys = [each.sequence_key for each in result.sequences]
    if keys != list(range(len(output.scheduled))):
        raise ValueError(
            f"the result's sequence keys are {keys}, the step has {len(output.scheduled)} sequences"
        )
    timings = result.timings
    return ModelRunnerOutput(
        tuple(_sequence_output(*pair) for pair in zip(output.scheduled, result.sequences, strict=True)),
        timings.prepare_seconds + timings.forward_seconds + timings.sample_seconds,
    )


def _sequence_step(
    key: int, scheduled: ScheduledSequence, block_size: int, params: types_pb2.SamplingParams
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
        step.samplings.append(_sampling_step(sequence, scheduled.num_scheduled_tokens - 1, params))
    if scheduled.wants_prompt_logprobs:
        step.prompt_logprobs = params.prompt_logprobs
        if end < len(request.prompt_token_ids):
            step.next_token_id = request.prompt_token_ids[end]
    return step


def _sampling_step(
    sequence: Sequence, query_index: int, params: types_pb2.SamplingParams
) -> worker_pb2.SamplingStep:
    """All values are set: `params` is resolved."""
    request, output_token_ids = sequence.request, sequence.output_token_ids
    step = worker_pb2.SamplingStep(
        query_index=query_index,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=params.logit_bias,
        seed=sequence.seed,
        num_output_tokens=len(output_token_ids),
    )
    if params.HasField("logprobs"):
        step.logprobs = params.logprobs
    if params.repetition_penalty != 1:
        step.prompt_token_ids.extend(sorted(set(request.prompt_token_ids)))
    if params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty:
        step.output_token_counts.update(Counter(output_token_ids))
    if len(output_token_ids) < request.min_tokens:
        step.banned_token_ids.extend(sorted(request.stop_token_ids))
    return step


def _sequence_output(scheduled: ScheduledSequence, result: worker_pb2.SequenceResult) -> SequenceOutput:
    if len(result.samples) != scheduled.samples:
        raise ValueError(
            f"{len(result.samples)} samples for a sequence that asked for {int(scheduled.samples)}"
        )
    sample: SampledToken | SampleFailure | None = None
    if result.samples:
        (outcome,) = result.samples
        if outcome.WhichOneof("outcome") == "token_id":
            sample = SampledToken(
                outcome.token_id, outcome.logprobs if outcome.HasField("logprobs") else None
            )
        else:
            reason = worker_pb2.SampleErrorReason.Name(outcome.error.reason)
            sample = SampleFailure(f"{reason}: {outcome.error.message}")
    return SequenceOutput(sample, tuple(result.prompt_logprobs))
