"""Applies one sequence's result to the sequence and its request, and returns the events.

Blocks and queues are the scheduler's.
"""

from services.scheduler.core.events import Event, FailedEvent, FinishedEvent, PromptLogprobsEvent, TokenEvent
from services.scheduler.core.request import FinishReason, Sequence
from services.scheduler.core.scheduler_output import (
    LogprobsT,
    SampledToken,
    SampleFailure,
    ScheduledSequence,
    SequenceOutput,
)


def apply_result(
    scheduled: ScheduledSequence, output: SequenceOutput[LogprobsT], now: float
) -> list[Event[LogprobsT]]:
    """Advances a running sequence. If it ends or fails, the last event says so."""
    sequence, request = scheduled.sequence, scheduled.sequence.request
    events = _report_prompt_logprobs(scheduled, output)
    if isinstance(output.sample, SampleFailure):
        return [*events, FailedEvent(request, "SEQUENCE_FAILED", output.sample.message)]
    sequence.num_computed_tokens += scheduled.num_scheduled_tokens
    if output.sample is not None:
        if request.first_token_time is None:
            request.first_token_time = now
        events += _append_token(sequence, output.sample)
    return events


def _report_prompt_logprobs(
    scheduled: ScheduledSequence, output: SequenceOutput[LogprobsT]
) -> list[Event[LogprobsT]]:
    """Each position once, also when a preempted prefill computes some again."""
    if not scheduled.wants_prompt_logprobs:
        return []
    request = scheduled.sequence.request
    first_new = request.num_prompt_logprobs_reported + 1
    num_known = first_new - (scheduled.context_len + 1)
    positions = output.prompt_logprobs[num_known:]
    if not positions:
        return []
    request.num_prompt_logprobs_reported += len(positions)
    return [PromptLogprobsEvent(request, first_new, positions)]


def _append_token(sequence: Sequence, token: SampledToken[LogprobsT]) -> list[Event[LogprobsT]]:
    """A stop token is counted but does not belong to the output; the last token before LENGTH does."""
    request = sequence.request
    may_stop = len(sequence.output_token_ids) >= request.min_tokens
    sequence.output_token_ids.append(token.token_id)
    if may_stop and token.token_id in request.stop_token_ids:
        return [FinishedEvent(sequence, FinishReason.STOP, token)]
    events: list[Event[LogprobsT]] = [TokenEvent(sequence, token)]
    if len(sequence.output_token_ids) >= request.max_tokens:
        events.append(FinishedEvent(sequence, FinishReason.LENGTH))
    return events
