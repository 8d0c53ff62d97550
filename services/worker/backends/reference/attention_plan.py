"""Which sequences of a step attend in which form: computed once on the host, used by every layer."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.worker.backends.reference.mla import MAX_SCRATCH, is_mha_cheaper
from services.worker.model.configuration import ModelConfig
from services.worker.model.input_batch import InputBatch
from services.worker.model.kv_cache import NULL_BLOCK

# Rows of the batch: a slice if they are contiguous, since indexing by one copies nothing.
Rows = slice | Tensor


@dataclass(frozen=True)
class MhaSequence:
    rows: slice
    # [seq_len]
    slots: Tensor


@dataclass(frozen=True)
class MqaGroup:
    """Sequences that share their mqa matmuls: equally many queries, contexts of similar length."""

    rows: Rows
    # [sequences, longest seq_len], the null block's first slot where a sequence is shorter.
    slots: Tensor
    # [sequences, queries]
    positions: Tensor


@dataclass(frozen=True)
class AttentionPlan:
    """cos and sin as `Rope.cos_sin` returns them, slot_mapping as in InputBatch."""

    cos: Tensor
    sin: Tensor
    slot_mapping: Tensor
    mha_sequences: list[MhaSequence]
    mqa_groups: list[MqaGroup]


def plan_attention(config: ModelConfig, batch: InputBatch, cos: Tensor, sin: Tensor) -> AttentionPlan:
    """Chooses each sequence's form by its cost, and groups those that can share their matmuls."""
    is_mha = [
        is_mha_cheaper(config, int(query_len), int(seq_len))
        for query_len, seq_len in zip(batch.query_lens, batch.seq_lens, strict=True)
    ]
    mha = (_mha_sequence(batch, i) for i in np.flatnonzero(is_mha).tolist())
    groups = _mqa_groups(config, batch, np.flatnonzero(np.logical_not(is_mha)))
    mqa = (_mqa_group(batch, members) for members in groups)
    return AttentionPlan(cos, sin, batch.slot_mapping, list(mha), list(mqa))


def _mha_sequence(batch: InputBatch, i: int) -> MhaSequence:
    start, stop = batch.query_start_loc[i : i + 2].tolist()
    slots = _padded_slots(batch, np.array([i]))[0]
    return MhaSequence(slice(start, stop), torch.from_numpy(slots).to(batch.positions.device))


def _mqa_groups(config: ModelConfig, batch: InputBatch, sequences: np.ndarray) -> Iterable[np.ndarray]:
    """Splits sequences into groups of one query length, in which padding costs less than another group would.

    A group's rows fit in MAX_SCRATCH, unless it is one sequence, which is then processed in tiles.
    """
    by_length = sequences[np.lexsort((batch.seq_lens[sequences], batch.query_lens[sequences]))]
    group: list[int] = []
    for i in by_length:
        shortest = batch.seq_lens[group[0]] if group else 0
        is_similar = batch.seq_lens[i] <= 2 * shortest + 4 * batch.block_size
        is_small = (len(group) + 1) * batch.seq_lens[i] * config.cache_row_size <= MAX_SCRATCH
        if group and not (batch.query_lens[i] == batch.query_lens[group[0]] and is_similar and is_small):
            yield np.sort(group)
            group = []
        group.append(i)
    if group:
        yield np.sort(group)


def _mqa_group(batch: InputBatch, members: np.ndarray) -> MqaGroup:
    device = batch.positions.device
    offsets = np.arange(batch.query_lens[members[0]])
    rows = (batch.query_start_loc[members][:, None] + offsets).flatten()
    is_contiguous = rows[-1] - rows[0] + 1 == len(rows)
    return MqaGroup(
        rows=slice(int(rows[0]), int(rows[-1]) + 1) if is_contiguous else torch.from_numpy(rows).to(device),
        slots=torch.from_numpy(_padded_slots(batch, members)).to(device),
        positions=torch.from_numpy(batch.context_lens[members][:, None] + offsets).to(device),
    )


def _padded_slots(batch: InputBatch, members: np.ndarray) -> np.ndarray:
    """The slots of every position of these sequences, [sequences, longest seq_len]."""
    seq_lens = batch.seq_lens[members]
    tables = [batch.block_tables[i] for i in members]
    table = np.full((len(members), max(len(each) for each in tables)), NULL_BLOCK, dtype=np.int64)
    for row, each in zip(table, tables, strict=True):
        row[: len(each)] = each
    slots = (table[:, :, None] * batch.block_size + np.arange(batch.block_size)).reshape(len(members), -1)
    is_used = np.arange(slots.shape[1]) < seq_lens[:, None]
    return np.where(is_used, slots, NULL_BLOCK * batch.block_size)[:, : seq_lens.max()]
