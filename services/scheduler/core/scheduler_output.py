"""What a step asks of a worker, and what it returns.

Generic in the log-probabilities: the core passes them on and does not look into them.
"""

from collections.abc import Sequence as ImmutableSequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from services.scheduler.core.request import Sequence

# The log-probabilities at one position.
LogprobsT = TypeVar("LogprobsT")


@dataclass(frozen=True)
class ScheduledSequence:
    """One sequence's part of a step: tokens [context_len, context_len + num_scheduled_tokens)."""

    sequence: Sequence
    context_len: int
    num_scheduled_tokens: int

    @property
    def samples(self) -> bool:
        """The chunk reaches the newest token, so the next one is sampled."""
        return self.context_len + self.num_scheduled_tokens == self.sequence.num_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        """The chunk computes logits of prompt positions that are still to be reported."""
        request = self.sequence.request
        num_reported = request.num_prompt_logprobs_reported
        return request.prompt_logprobs is not None and num_reported < len(request.prompt_token_ids) - 1


@dataclass(frozen=True)
class SchedulerOutput:
    """One step for one worker."""

    worker: int
    scheduled: tuple[ScheduledSequence, ...]

    @property
    def num_tokens(self) -> int:
        return sum(each.num_scheduled_tokens for each in self.scheduled)


@dataclass(frozen=True)
class SampledToken(Generic[LogprobsT]):
    """`logprobs` is None unless the request asked for them."""

    token_id: int
    logprobs: LogprobsT | None = None


@dataclass(frozen=True)
class SampleFailure:
    """Why no token could be chosen."""

    message: str


@dataclass(frozen=True)
class SequenceOutput(Generic[LogprobsT]):
    """One sequence's result; `sample` is None in the middle of a prefill."""

    sample: SampledToken[LogprobsT] | SampleFailure | None = None
    prompt_logprobs: ImmutableSequence[LogprobsT] = ()


@dataclass(frozen=True)
class ModelRunnerOutput(Generic[LogprobsT]):
    """One step's results, in the order of `SchedulerOutput.scheduled`."""

    sequences: tuple[SequenceOutput[LogprobsT], ...]
    worker_seconds: float = 0.0
