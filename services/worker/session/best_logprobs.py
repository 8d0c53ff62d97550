"""Steps that report the best log-probabilities even if their caller did not request any.

A record and its replay compare them: a wrong kernel changes log-probabilities long before it changes a token.
"""

from triptych.v1 import types_pb2, worker_pb2

# The best token and its rival: what a difference is reported with.
_NUM_BEST = 2


def with_best_logprobs(step: worker_pb2.Step, max_logprobs: int) -> worker_pb2.Step:
    """A copy of the step in which every sample, and every requested prompt position, has alternatives."""
    num_best = min(_NUM_BEST, max_logprobs)
    asking = worker_pb2.Step()
    asking.CopyFrom(step)
    for sequence in asking.sequences:
        for sampling in sequence.samplings:
            sampling.logprobs = max(sampling.logprobs, num_best)
        if sequence.HasField("prompt_logprobs"):
            sequence.prompt_logprobs = max(sequence.prompt_logprobs, num_best)
    return asking


def without_best_logprobs(step: worker_pb2.Step, result: worker_pb2.StepResult) -> worker_pb2.StepResult:
    """A copy of the result of `with_best_logprobs(step)`: what `step` itself is answered with."""
    answer = worker_pb2.StepResult()
    answer.CopyFrom(result)
    for sequence, answered in zip(step.sequences, answer.sequences, strict=True):
        for sampling, sample in zip(sequence.samplings, answered.samples, strict=True):
            if sampling.HasField("logprobs"):
                _truncate(sample.logprobs, sampling.logprobs)
            else:
                sample.ClearField("logprobs")
        for logprobs in answered.prompt_logprobs:
            _truncate(logprobs, sequence.prompt_logprobs)
    return answer


def _truncate(logprobs: types_pb2.PositionLogprobs, num_top: int) -> None:
    del logprobs.top[num_top:]
