"""What the scheduler tells the engine. Generic in the log-probabilities: the core passes them on and does not
look into them."""

from collections.abc import Sequence as ImmutableSequence
from dataclasses import dataclass
from typing import Generic

from services.scheduler.core.request import FinishReason, Request, Sequence
from services.scheduler.core.scheduler_output import LogprobsT, SampledToken


@dataclass(frozen=True)
class ScheduledEvent:
    """A request's first step has been planned."""

    request: Request


@dataclass(frozen=True)
class PromptLogprobsEvent(Generic[LogprobsT]):
    """Log-probabilities of consecutive prompt positions."""

    request: Request
    first_position: int
    positions: ImmutableSequence[LogprobsT]


@dataclass(frozen=True)
class TokenEvent(Generic[LogprobsT]):
    """A token that belongs to the output."""

    sequence: Sequence
    token: SampledToken[LogprobsT]

    @property
    def request(self) -> Request:
        return self.sequence.request


@dataclass(frozen=True)
class FinishedEvent(Generic[LogprobsT]):
    """An output has ended; `stop_token` is the one that ended it, if a token did."""

    sequence: Sequence
    finish_reason: FinishReason
    stop_token: SampledToken[LogprobsT] | None = None

    @property
    def request(self) -> Request:
        return self.sequence.request


@dataclass(frozen=True)
class FailedEvent:
    """A request has ended with an error; `reason` is a name of shared.errors.Reason."""

    request: Request
    reason: str
    message: str


Event = (
    ScheduledEvent
    | PromptLogprobsEvent[LogprobsT]
    | TokenEvent[LogprobsT]
    | FinishedEvent[LogprobsT]
    | FailedEvent
)
