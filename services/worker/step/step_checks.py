"""Whether a step is valid by worker.proto; checked before anything is written.

Every error is MALFORMED_STEP and names the path of the field at fault, its value and what is allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from triptych.v1 import worker_pb2

from services.worker.model.kv_cache import NULL_BLOCK
from shared.errors import Reason, ServiceError
from shared.sampling_params import FLOAT_RANGES, LOGIT_BIAS_RANGE


@dataclass(frozen=True)
class StepLimits:
    vocab_size: int
    num_blocks: int
    block_size: int
    max_num_batched_tokens: int
    max_model_len: int
    max_logprobs: int


def check_step(step: worker_pb2.Step, limits: StepLimits) -> None:
    """Raises ServiceError (MALFORMED_STEP) for the first fault found."""
    _check_copies(step, limits)
    if not step.sequences:
        _malformed("sequences", "empty", "at least one")
    keys: set[int] = set()
    for i, sequence in enumerate(step.sequences):
        if sequence.sequence_key in keys:
            _malformed(
                f"sequences[{i}].sequence_key",
                sequence.sequence_key,
                "a key of no other sequence of the step",
            )
        keys.add(sequence.sequence_key)
        _check_sequence(f"sequences[{i}]", sequence, limits)
    num_tokens = sum(len(sequence.token_ids) for sequence in step.sequences)
    if num_tokens > limits.max_num_batched_tokens:
        allowed = f"at most max_num_batched_tokens = {limits.max_num_batched_tokens} in all"
        _malformed("sequences.token_ids", f"{num_tokens} tokens", allowed)
    _check_writes(step, limits)


def _check_copies(step: worker_pb2.Step, limits: StepLimits) -> None:
    sources = {copy.source_block_id for copy in step.block_copies}
    targets: set[int] = set()
    for i, copy in enumerate(step.block_copies):
        _check_block(f"block_copies[{i}].source_block_id", copy.source_block_id, limits)
        _check_block(f"block_copies[{i}].target_block_id", copy.target_block_id, limits)
        if copy.target_block_id in sources or copy.target_block_id in targets:
            allowed = "a block that is not another copy's source or target"
            _malformed(f"block_copies[{i}].target_block_id", copy.target_block_id, allowed)
        targets.add(copy.target_block_id)


def _check_block(field: str, block_id: int, limits: StepLimits) -> None:
    _check_range(field, block_id, NULL_BLOCK + 1, limits.num_blocks - 1)


def _check_sequence(field: str, sequence: worker_pb2.SequenceStep, limits: StepLimits) -> None:
    if not sequence.token_ids:
        _malformed(f"{field}.token_ids", "empty", "at least one")
    seq_len = sequence.context_len + len(sequence.token_ids)
    if seq_len > limits.max_model_len:
        allowed = f"0 to {limits.max_model_len - len(sequence.token_ids)}, so that seq_len is at most "
        _malformed(
            f"{field}.context_len", sequence.context_len, f"{allowed}max_model_len = {limits.max_model_len}"
        )
    _check_ids(f"{field}.token_ids", sequence.token_ids, 0, limits.vocab_size - 1)
    num_blocks = -(-seq_len // limits.block_size)
    if len(sequence.block_ids) != num_blocks:
        allowed = f"{num_blocks}, as many as seq_len = {seq_len} needs"
        _malformed(f"{field}.block_ids", f"{len(sequence.block_ids)} blocks", allowed)
    _check_ids(f"{field}.block_ids", sequence.block_ids, NULL_BLOCK + 1, limits.num_blocks - 1)
    for i, sampling in enumerate(sequence.samplings):
        path = f"{field}.samplings[{i}]"
        _check_range(f"{path}.query_index", sampling.query_index, 0, len(sequence.token_ids) - 1)
        _check_sampling(path, sampling, limits.vocab_size, limits.max_logprobs)
    if sequence.HasField("prompt_logprobs"):
        _check_range(f"{field}.prompt_logprobs", sequence.prompt_logprobs, 0, limits.max_logprobs)
    if sequence.HasField("next_token_id"):
        _check_range(f"{field}.next_token_id", sequence.next_token_id, 0, limits.vocab_size - 1)


def _check_sampling(
    field: str, sampling: worker_pb2.SamplingStep, vocab_size: int, max_logprobs: int
) -> None:
    """The ranges of worker.proto and of SamplingParams."""
    for name, bounds in FLOAT_RANGES.items():
        if (value := getattr(sampling, name)) not in bounds:
            _malformed(f"{field}.{name}", value, str(bounds))
    last_id = vocab_size - 1
    _check_ids(f"{field}.prompt_token_ids", sampling.prompt_token_ids, 0, last_id)
    _check_ids(f"{field}.banned_token_ids", sampling.banned_token_ids, 0, last_id)
    for token_id in sampling.output_token_counts:
        _check_range(f"{field}.output_token_counts (key)", token_id, 0, last_id)
    for token_id, bias in sampling.logit_bias.items():
        _check_range(f"{field}.logit_bias (key)", token_id, 0, last_id)
        if bias not in LOGIT_BIAS_RANGE:
            _malformed(f"{field}.logit_bias[{token_id}]", bias, str(LOGIT_BIAS_RANGE))
    if len(sampling.allowed_token_mask) > -(-vocab_size // 8):
        allowed = f"at most {-(-vocab_size // 8)}, a bit for each of vocab_size = {vocab_size}"
        _malformed(f"{field}.allowed_token_mask", f"{len(sampling.allowed_token_mask)} bytes", allowed)
    if sampling.HasField("logprobs"):
        _check_range(f"{field}.logprobs", sampling.logprobs, 0, max_logprobs)


def _check_writes(step: worker_pb2.Step, limits: StepLimits) -> None:
    """A block that a sequence writes is in its table once, and in no other's."""
    table_lens = [len(sequence.block_ids) for sequence in step.sequences]
    block_ids = np.fromiter((b for sequence in step.sequences for b in sequence.block_ids), dtype=np.int64)
    index_in_table = np.concatenate([np.arange(table_len) for table_len in table_lens])
    first_written = [sequence.context_len // limits.block_size for sequence in step.sequences]
    is_written = index_in_table >= np.repeat(first_written, table_lens)
    is_shared = np.bincount(block_ids)[block_ids] > 1
    faults = np.flatnonzero(is_written & is_shared)
    if len(faults):
        sequence_index = np.repeat(np.arange(len(table_lens)), table_lens)[faults[0]]
        field = f"sequences[{sequence_index}].block_ids[{index_in_table[faults[0]]}]"
        _malformed(field, block_ids[faults[0]], "a block used once: this sequence writes it")


def _malformed(field: str, value: object, allowed: str) -> NoReturn:
    raise ServiceError(
        Reason.MALFORMED_STEP,
        f"{field} is {value}; allowed: {allowed}",
        field=field,
        value=value,
        allowed=allowed,
    )


def _check_range(field: str, value: float, smallest: float, largest: float) -> None:
    """Both ends are allowed; NaN is not."""
    if not smallest <= value <= largest:
        _malformed(field, value, f"{smallest} to {largest}")


def _check_ids(field: str, ids: Sequence[int], smallest: int, largest: int) -> None:
    """Every element of a repeated field; the first bad one is named."""
    if not ids or smallest <= min(ids) <= max(ids) <= largest:
        return
    for i, value in enumerate(ids):
        _check_range(f"{field}[{i}]", value, smallest, largest)
