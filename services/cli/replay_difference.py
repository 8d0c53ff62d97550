"""Where a step's replayed result first differs from its recorded one. Pure: messages in, sentence out."""

from collections.abc import Sequence

from triptych.v1 import types_pb2, worker_pb2

_Entries = Sequence[types_pb2.TokenLogprob]


def first_difference(
    step: worker_pb2.Step,
    recorded: worker_pb2.StepResult,
    replayed: worker_pb2.StepResult,
    tolerance: float,
) -> str | None:
    """None if tokens and errors are equal, and log-probabilities, where recorded, within the tolerance."""
    if len(recorded.sequences) != len(step.sequences):
        return f"step {step.step_id}: the record's result does not answer it"
    for sequence, one, other in zip(step.sequences, recorded.sequences, replayed.sequences, strict=True):
        where = f"step {step.step_id}, sequence {sequence.sequence_key}"
        where += f" (request {sequence.request_id})" if sequence.request_id else ""
        for sampling, sample, answer in zip(sequence.samplings, one.samples, other.samples, strict=True):
            if (what := _sample_difference(sample, answer, tolerance)) is not None:
                position = sequence.context_len + sampling.query_index + 1
                return f"{where}, position {position}: {what}; {_two_best(answer.logprobs)}"
        prompt = zip(one.prompt_logprobs, other.prompt_logprobs, strict=True)
        for i, (logprobs, answered) in enumerate(prompt):
            if (what := _logprobs_difference(logprobs, answered, tolerance)) is not None:
                position = sequence.context_len + 1 + i
                return f"{where}, prompt position {position}: {what}; {_two_best(answered)}"
    return None


def _sample_difference(
    recorded: worker_pb2.Sample, replayed: worker_pb2.Sample, tolerance: float
) -> str | None:
    if _outcome(recorded) != _outcome(replayed):
        return f"recorded {_outcome(recorded)}, replayed {_outcome(replayed)}"
    if not recorded.HasField("logprobs"):
        return None
    return _logprobs_difference(recorded.logprobs, replayed.logprobs, tolerance)


def _outcome(sample: worker_pb2.Sample) -> str:
    if sample.WhichOneof("outcome") == "token_id":
        return f"token {sample.token_id}"
    return worker_pb2.SampleErrorReason.Name(sample.error.reason)


def _logprobs_difference(
    recorded: types_pb2.PositionLogprobs, replayed: types_pb2.PositionLogprobs, tolerance: float
) -> str | None:
    """The largest difference of one log-probability, if it is above the tolerance."""
    counterparts = [(recorded.token, replayed.token)]
    counterparts += zip(recorded.top, _counterparts(recorded.top, replayed.top), strict=False)
    one, other = max(counterparts, key=lambda pair: abs(pair[0].logprob - pair[1].logprob))
    if abs(one.logprob - other.logprob) <= tolerance:
        return None
    return f"log-probabilities differ: recorded {_described(one)}, replayed {_described(other)}"


def _counterparts(recorded: _Entries, replayed: _Entries) -> list[types_pb2.TokenLogprob]:
    """For each recorded alternative the same token's, or the one of its rank.

    Two tokens within the tolerance may swap ranks; the last one may swap with a token that is not listed.
    """
    by_id = {entry.token_id: entry for entry in replayed}
    return [by_id.get(one.token_id, other) for one, other in zip(recorded, replayed, strict=False)]


def _two_best(logprobs: types_pb2.PositionLogprobs) -> str:
    best = ", ".join(map(_described, logprobs.top[:2]))
    return f"the replay's two best there: {best}" if best else "the replay reports no alternatives"


def _described(entry: types_pb2.TokenLogprob) -> str:
    return f"token {entry.token_id} ({entry.logprob:.6f})"
