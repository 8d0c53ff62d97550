"""A step as tensors: the tokens of all its sequences one after another, without padding."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from triptych.v1 import worker_pb2


@dataclass(frozen=True)
class InputBatch:
    """One step's inputs. `T` tokens in all, `N` sequences, in the step's order; int64 everywhere.

    A sequence's tokens are rows query_start_loc[i] to query_start_loc[i + 1]; the first is at position
    context_lens[i] and the last at seq_lens[i] - 1.
    """

    # [T], on the device: the tokens, their positions, and the cache slots their rows go to.
    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    # On the host, for planning: [N + 1], [N], [N], and each sequence's own table.
    query_start_loc: np.ndarray
    context_lens: np.ndarray
    seq_lens: np.ndarray
    block_tables: list[np.ndarray]
    block_size: int

    @classmethod
    def from_step(cls, step: worker_pb2.Step, *, block_size: int, device: torch.device) -> "InputBatch":
        """Packs a step that passed `check_step`."""
        token_ids = [np.array(sequence.token_ids, dtype=np.int64) for sequence in step.sequences]
        block_tables = [np.array(sequence.block_ids, dtype=np.int64) for sequence in step.sequences]
        context_lens = np.array([sequence.context_len for sequence in step.sequences], dtype=np.int64)
        query_lens = np.array([len(ids) for ids in token_ids], dtype=np.int64)
        query_start_loc = np.concatenate(([0], query_lens.cumsum()))
        # Row r of sequence i is at position context_lens[i] + (r - query_start_loc[i]).
        positions = np.arange(query_start_loc[-1]) + np.repeat(
            context_lens - query_start_loc[:-1], query_lens
        )
        # Its block is in the sequence's own table, which begins at table_starts[i] of all tables in a row.
        table_starts = np.concatenate(([0], np.cumsum([len(table) for table in block_tables])[:-1]))
        blocks = np.concatenate(block_tables)[np.repeat(table_starts, query_lens) + positions // block_size]
        slot_mapping = blocks * block_size + positions % block_size
        packed = np.stack((np.concatenate(token_ids), positions, slot_mapping))
        on_device = torch.from_numpy(packed).to(device)
        return cls(
            input_ids=on_device[0],
            positions=on_device[1],
            slot_mapping=on_device[2],
            query_start_loc=query_start_loc,
            context_lens=context_lens,
            seq_lens=context_lens + query_lens,
            block_tables=block_tables,
            block_size=block_size,
        )

    @property
    def query_lens(self) -> np.ndarray:
        return np.diff(self.query_start_loc)
