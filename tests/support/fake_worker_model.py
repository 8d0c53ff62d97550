"""The fake worker's model: deterministic, exact, and unforgiving about its KV cache.

A token's KV is a number made of the token and of everything before it, as in a real model. It lies in the
slot that the block table names, and the next token is chosen from all that is read back through the block
table. So a wrong block, a stale cache hit, a wrong context_len or a lost recomputation changes the tokens. A
step that breaks the contract, or reads a slot that was never written, raises ContractViolationError.

Hashes of integers are the same in every process.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Any

from triptych.v1 import types_pb2, worker_pb2

VOCAB_SIZE = 1000
EOS_TOKEN_IDS = (998, 999)
# End-of-sequence ids are chosen only if a bias asks for them: nothing ends by chance.
_NUM_CHOOSABLE = 990
_FORCING_BIAS = 100.0


class ContractViolationError(Exception):
    """What no scheduler may send."""


def make_info(**fields: object) -> types_pb2.ModelInfo:
    """A small model in a small cache; `fields` replace what is given here."""
    defaults: dict[str, Any] = {
        "model": "fake",
        "model_fingerprint": "model-1",
        "tokenizer_fingerprint": "tokenizer-1",
        "vocab_size": VOCAB_SIZE,
        "max_model_len": 512,
        "eos_token_ids": EOS_TOKEN_IDS,
        "block_size": 16,
        "num_blocks": 257,
        "bytes_per_block": 4096,
        "max_num_batched_tokens": 2048,
        "max_logprobs": 20,
        "device": "cpu",
        "weight_dtype": "float32",
        "backend": "fake",
    }
    return types_pb2.ModelInfo(**(defaults | fields))


def kv_of(kv_before: int, token_id: int) -> int:
    """A token's KV; `kv_before` is 0 at position 0."""
    return hash((kv_before, token_id))


def choose_token(kv: Iterable[int], seed: int, num_output_tokens: int, banned: Collection[int] = ()) -> int:
    """The next token, from the KV of all positions; `seed` is 0 if greedy."""
    token_id = hash((*kv, seed, num_output_tokens)) % _NUM_CHOOSABLE
    while token_id in banned:
        token_id = (token_id + 1) % _NUM_CHOOSABLE
    return token_id


def logprobs_of(kv: int, token_id: int, num_top: int) -> types_pb2.PositionLogprobs:
    """What stands for a token's log-probabilities after a position with that KV."""

    def entry(rank: int) -> types_pb2.TokenLogprob:
        value = hash((kv, token_id, rank))
        return types_pb2.TokenLogprob(
            token_id=value % VOCAB_SIZE if rank else token_id, logprob=-(value % 1000) / 128, rank=rank or 3
        )

    return types_pb2.PositionLogprobs(token=entry(0), top=[entry(rank) for rank in range(1, num_top + 1)])


def kv_chain(token_ids: Iterable[int]) -> list[int]:
    """The KV of tokens from position 0 on."""
    kv: list[int] = []
    for token_id in token_ids:
        kv.append(kv_of(kv[-1] if kv else 0, token_id))
    return kv


def undisturbed_output(prompt: Sequence[int], num_tokens: int, seed: int = 0) -> list[int]:
    """The first tokens of an output, as if nothing else ran. seed: 0 if greedy."""
    kv, output = kv_chain(prompt), list[int]()
    while len(output) < num_tokens:
        output.append(choose_token(kv, seed, len(output)))
        kv.append(kv_of(kv[-1], output[-1]))
    return output


def undisturbed_prompt_logprobs(prompt: Sequence[int], num_top: int) -> list[types_pb2.PositionLogprobs]:
    """Of positions 1 onwards."""
    pairs = zip(kv_chain(prompt), prompt[1:], strict=False)
    return [logprobs_of(kv, token_id, num_top) for kv, token_id in pairs]


class FakeModel:
    """One worker's slots, empty at first."""

    def __init__(self, info: types_pb2.ModelInfo) -> None:
        self._info = info
        self._blocks: list[list[int | None]] = [[None] * info.block_size for _ in range(info.num_blocks)]

    def execute(self, step: worker_pb2.Step, expected_step_id: int) -> list[worker_pb2.SequenceResult]:
        """Checks everything, reads all contexts, then writes: as one pass, whose sequences see nothing of
        each other."""
        _must(step.step_id == expected_step_id, f"step {step.step_id} instead of {expected_step_id}")
        check_step(step, self._info)
        contexts = [self._read(sequence) for sequence in step.sequences]
        return [self._advance(*pair) for pair in zip(step.sequences, contexts, strict=True)]

    def _read(self, sequence: worker_pb2.SequenceStep) -> list[int]:
        slots = chain.from_iterable(self._blocks[block_id] for block_id in sequence.block_ids)
        kv = list(slots)[: sequence.context_len]
        if None in kv:
            raise ContractViolationError(
                f"{sequence.request_id}: position {kv.index(None)} was never written"
            )
        return [each for each in kv if each is not None]

    def _advance(self, sequence: worker_pb2.SequenceStep, kv: list[int]) -> worker_pb2.SequenceResult:
        block_size = self._info.block_size
        for position, token_id in enumerate(sequence.token_ids, start=sequence.context_len):
            kv.append(kv_of(kv[-1] if kv else 0, token_id))
            self._blocks[sequence.block_ids[position // block_size]][position % block_size] = kv[-1]
        result = worker_pb2.SequenceResult(sequence_key=sequence.sequence_key)
        for sampling in sequence.samplings:
            result.samples.append(_sample(sampling, kv[: sequence.context_len + sampling.query_index + 1]))
        if sequence.HasField("prompt_logprobs"):
            targets = list(sequence.token_ids[1:])
            targets += [sequence.next_token_id] if sequence.HasField("next_token_id") else []
            pairs = zip(kv[sequence.context_len :], targets, strict=False)
            result.prompt_logprobs.extend(logprobs_of(*pair, sequence.prompt_logprobs) for pair in pairs)
        return result


def _sample(sampling: worker_pb2.SamplingStep, kv: list[int]) -> worker_pb2.Sample:
    banned = frozenset(sampling.banned_token_ids)
    forced = [each for each, bias in sampling.logit_bias.items() if bias >= _FORCING_BIAS]
    seed = sampling.seed if sampling.temperature else 0
    token_id = next(
        (each for each in forced if each not in banned),
        choose_token(kv, seed, sampling.num_output_tokens, banned),
    )
    sample = worker_pb2.Sample(token_id=token_id)
    if sampling.HasField("logprobs"):
        sample.logprobs.CopyFrom(logprobs_of(kv[-1], token_id, sampling.logprobs))
    return sample


def check_step(step: worker_pb2.Step, info: types_pb2.ModelInfo) -> None:
    """Raises ContractViolationError for what worker.proto calls malformed."""
    _must(len(step.sequences) > 0, "no sequences")
    keys = {sequence.sequence_key for sequence in step.sequences}
    _must(len(keys) == len(step.sequences), "a sequence_key twice")
    num_tokens = sum(len(sequence.token_ids) for sequence in step.sequences)
    _must(num_tokens <= info.max_num_batched_tokens, f"{num_tokens} tokens in one step")
    written: list[int] = []
    for sequence in step.sequences:
        _check_sequence(sequence, info)
        written += sequence.block_ids[sequence.context_len // info.block_size :]
    _must(len(set(written)) == len(written), "a block written by two sequences")


def _check_sequence(sequence: worker_pb2.SequenceStep, info: types_pb2.ModelInfo) -> None:
    name, seq_len = sequence.request_id, sequence.context_len + len(sequence.token_ids)
    _must(len(sequence.token_ids) > 0, f"{name}: no tokens")
    _must(seq_len <= info.max_model_len, f"{name}: seq_len {seq_len}")
    _must(max(sequence.token_ids) < info.vocab_size, f"{name}: a token that is none")
    _must(len(sequence.block_ids) == -(-seq_len // info.block_size), f"{name}: wrong number of blocks")
    in_range = all(0 < block_id < info.num_blocks for block_id in sequence.block_ids)
    _must(in_range, f"{name}: the null block, or none of ours")
    for sampling in sequence.samplings:
        _must(sampling.query_index < len(sequence.token_ids), f"{name}: query_index")
        _must(0 < sampling.top_p <= 1 and sampling.temperature >= 0, f"{name}: sampling parameters")
        _must(sampling.repetition_penalty > 0, f"{name}: repetition_penalty")
        _must(sampling.logprobs <= info.max_logprobs, f"{name}: logprobs")


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise ContractViolationError(what)
