"""A worker for tests of the scheduler: deterministic, exact, and unforgiving about its KV cache.

The KV of a token is a number made of the token and of everything before it, as in a real model. It is stored
in the slot that the block table names, and the next token is chosen from all that is read back through the
block table. So a wrong block, a stale cache hit, a wrong context_len or a recomputation left out changes the
tokens, and reading a slot that was never written raises.
"""

from collections.abc import Sequence as ImmutableSequence
from dataclasses import dataclass

from services.scheduler.core.request import FinishReason, Request
from services.scheduler.core.scheduler_output import (
    ModelRunnerOutput,
    SampledToken,
    ScheduledSequence,
    SchedulerOutput,
    SequenceOutput,
)

VOCAB_SIZE = 24


def kv_of(kv_before: int, token_id: int) -> int:
    """A token's KV; `kv_before` is 0 at position 0. (Hashes of integers are the same in every process.)"""
    return hash((kv_before, token_id))


def choose_token(kv: ImmutableSequence[int], seed: int, num_output_tokens: int) -> int:
    """The next token, from the KV of all positions."""
    return hash((*kv, seed, num_output_tokens)) % VOCAB_SIZE


def prompt_logprob(kv_before: int, token_id: int) -> int:
    """What stands for a prompt position's log-probabilities."""
    return hash((kv_before, token_id, 1))


def undisturbed_output(request: Request, output_index: int) -> tuple[list[int], FinishReason]:
    """All tokens of an output, the one that ends it included, as if nothing else ran."""
    kv: list[int] = []
    for token_id in request.prompt_token_ids:
        kv.append(kv_of(kv[-1] if kv else 0, token_id))
    tokens: list[int] = []
    while len(tokens) < request.max_tokens:
        token_id = choose_token(kv, request.seeds[output_index], len(tokens))
        may_stop = len(tokens) >= request.min_tokens
        tokens.append(token_id)
        if may_stop and token_id in request.stop_token_ids:
            return tokens, FinishReason.STOP
        kv.append(kv_of(kv[-1], token_id))
    return tokens, FinishReason.LENGTH


def undisturbed_prompt_logprobs(request: Request) -> list[int]:
    """Of positions 1 onwards."""
    kv = 0
    logprobs: list[int] = []
    for token_id, next_token_id in zip(request.prompt_token_ids, request.prompt_token_ids[1:], strict=False):
        kv = kv_of(kv, token_id)
        logprobs.append(prompt_logprob(kv, next_token_id))
    return logprobs


@dataclass(frozen=True)
class SequenceCall:
    """What the wire's SequenceStep carries: fixed when the step is sent, whatever happens meanwhile."""

    token_ids: list[int]
    context_len: int
    block_ids: list[int]
    seed: int
    num_output_tokens: int
    samples: bool
    # The prompt's tokens after each of token_ids, if their log-probabilities are wanted.
    prompt_targets: list[int]


class FakeWorkerCore:
    """One worker's slots, and the model."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._slots: dict[int, int] = {}

    def prepare(self, output: SchedulerOutput) -> list[SequenceCall]:
        """The step as it is sent."""
        return [self._prepare_sequence(scheduled) for scheduled in output.scheduled]

    def execute(self, calls: list[SequenceCall]) -> ModelRunnerOutput[int]:
        """Writes the KV of the step's tokens and chooses the next ones."""
        return ModelRunnerOutput(tuple(self._execute_sequence(call) for call in calls), worker_seconds=1.0)

    def written_blocks(self, call: SequenceCall) -> list[int]:
        """The blocks that a call writes to."""
        return call.block_ids[call.context_len // self.block_size :]

    def _prepare_sequence(self, scheduled: ScheduledSequence) -> SequenceCall:
        sequence, prompt = scheduled.sequence, scheduled.sequence.request.prompt_token_ids
        seq_len = scheduled.context_len + scheduled.num_scheduled_tokens
        return SequenceCall(
            token_ids=sequence.token_ids(scheduled.context_len, seq_len),
            context_len=scheduled.context_len,
            block_ids=sequence.block_ids[: -(-seq_len // self.block_size)],
            seed=sequence.seed,
            num_output_tokens=len(sequence.output_token_ids),
            samples=scheduled.samples,
            prompt_targets=list(prompt[scheduled.context_len + 1 : seq_len + 1])
            if scheduled.wants_prompt_logprobs
            else [],
        )

    def _execute_sequence(self, call: SequenceCall) -> SequenceOutput[int]:
        kv = self._write_and_read_back(call)
        new_kv = kv[call.context_len :]
        logprobs = [prompt_logprob(*each) for each in zip(new_kv, call.prompt_targets, strict=False)]
        token_id = choose_token(kv, call.seed, call.num_output_tokens)
        return SequenceOutput(SampledToken(token_id) if call.samples else None, logprobs)

    def _write_and_read_back(self, call: SequenceCall) -> list[int]:
        seq_len = call.context_len + len(call.token_ids)
        assert len(call.token_ids) > 0
        assert len(call.block_ids) == -(-seq_len // self.block_size)
        assert all(0 < block_id < self.num_blocks for block_id in call.block_ids)
        slots = [
            call.block_ids[position // self.block_size] * self.block_size + position % self.block_size
            for position in range(seq_len)
        ]
        kv = [self._slots[slot] for slot in slots[: call.context_len]]  # KeyError: never written
        for slot, token_id in zip(slots[call.context_len :], call.token_ids, strict=True):
            kv.append(kv_of(kv[-1] if kv else 0, token_id))
            self._slots[slot] = kv[-1]
        return kv
