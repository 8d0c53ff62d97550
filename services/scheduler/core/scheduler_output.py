"""What a step asks, what it returns, and what the scheduler tells the engine about it."""

from collections.abc import Sequence as ImmutableSequence
from dataclasses import dataclass
from typing import Any

from services.scheduler.core.request import FinishReason, Request, Sequence


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
        """Tokens that the step computes."""
        return sum(each.num_scheduled_tokens for each in self.scheduled)


@dataclass(frozen=True)
class SampledToken:
    """One token, with its log-probabilities in whatever form the worker's client has them."""

    token_id: int
    logprobs: Any = None


@dataclass(frozen=True)
class SampleFailure:
    """Why no token could be chosen."""

    message: str


@dataclass(frozen=True)
class SequenceOutput:
    """One sequence's result; `sample` is None in the middle of a prefill."""

    sample: SampledToken | SampleFailure | None = None
    prompt_logprobs: ImmutableSequence[Any] = ()


@dataclass(frozen=True)
class ModelRunnerOutput:
    """One step's results, in the order of `SchedulerOutput.scheduled`."""

    sequences: tuple[SequenceOutput, ...]
    worker_seconds: float = 0.0


@dataclass(frozen=True)
class ScheduledEvent:
    """A request's first step has been planned."""

    request: Request


@dataclass(frozen=True)
class PromptLogprobsEvent:
    """Log-probabilities of consecutive prompt positions."""

    request: Request
    first_position: int
    positions: ImmutableSequence[Any]


@dataclass(frozen=True)
class TokenEvent:
    """A token that belongs to the output."""

    sequence: Sequence
    token: SampledToken


@dataclass(frozen=True)
class FinishedEvent:
    """An output ended; `stop_token` is the one that ended it, if a token did."""

    sequence: Sequence
    finish_reason: FinishReason
    stop_token: SampledToken | None = None


@dataclass(frozen=True)
class FailedEvent:
    """A request ended with an error; `reason` is a name of shared.errors.Reason."""

    request: Request
    reason: str
    message: str


Event = ScheduledEvent | PromptLogprobsEvent | TokenEvent | FinishedEvent | FailedEvent
