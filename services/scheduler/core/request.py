"""A request and the sequences that make its outputs."""

from collections.abc import Sequence as ImmutableSequence
from dataclasses import dataclass, field
from enum import Enum, auto


class RequestStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED = auto()


class FinishReason(Enum):
    STOP = auto()
    LENGTH = auto()
    ABORT = auto()


@dataclass(eq=False)
class Request:
    """One request, its limits resolved. Times are seconds on the caller's clock."""

    generation_id: str
    request_id: str
    prompt_token_ids: ImmutableSequence[int]
    max_tokens: int
    seeds: tuple[int, ...]
    arrival_time: float
    # Tokens that end an output, the model's end-of-sequence ids included unless the caller ignores them.
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    prompt_logprobs: int | None = None
    priority: int = 0
    cache_salt: str = ""

    sequences: list["Sequence"] = field(init=False)
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    worker_seconds: float = 0.0
    num_cached_tokens: int = 0
    # Outputs after the first wait until it has computed the prompt that they share.
    has_queued_all: bool = False
    # Prompt positions whose log-probabilities were reported; position 0 has none.
    num_prompt_logprobs_reported: int = 0

    def __post_init__(self) -> None:
        self.sequences = [Sequence(self, index, seed) for index, seed in enumerate(self.seeds)]

    @property
    def is_finished(self) -> bool:
        return all(sequence.is_finished for sequence in self.sequences)

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far, over all outputs, ending tokens included."""
        return sum(len(sequence.output_token_ids) for sequence in self.sequences)


class Sequence:
    """The prompt and the tokens of one output: what a step advances.

    `num_computed_tokens` counts tokens whose KV is in the blocks. The newest token is sampled but not
    computed, so a decoding sequence has one uncomputed token, and a preempted one has them all.
    """

    def __init__(self, request: Request, output_index: int, seed: int) -> None:
        self.request = request
        self.output_index = output_index
        self.seed = seed
        self.status = RequestStatus.WAITING
        self.output_token_ids: list[int] = []
        self.num_computed_tokens = 0
        self.block_ids: list[int] = []
        # The worker that holds the blocks; None while there are none.
        self.worker: int | None = None
        self.num_preemptions = 0
        self.num_migrations = 0

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Tokens at positions [start, stop), across the border of prompt and output."""
        prompt = self.request.prompt_token_ids
        head = list(prompt[start:stop])
        return head + self.output_token_ids[max(0, start - len(prompt)) : max(0, stop - len(prompt))]

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request.generation_id}/{self.output_index}, {self.status.name}, "
            f"computed {self.num_computed_tokens} of {self.num_tokens}, worker {self.worker})"
        )
