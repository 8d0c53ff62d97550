"""Steps as packed tensors."""

import numpy as np
import torch
from triptych.v1 import worker_pb2

from services.worker.model.input_batch import InputBatch


def test_sequences_are_packed_one_after_the_other() -> None:
    step = worker_pb2.Step(
        sequences=[
            worker_pb2.SequenceStep(token_ids=[11, 12, 13], context_len=3, block_ids=[7, 2]),
            worker_pb2.SequenceStep(token_ids=[21], context_len=8, block_ids=[5, 4, 9]),
            worker_pb2.SequenceStep(token_ids=[31, 32], block_ids=[1]),
        ]
    )
    batch = InputBatch.from_step(step, block_size=4, device=torch.device("cpu"))
    assert batch.input_ids.tolist() == [11, 12, 13, 21, 31, 32]
    assert batch.positions.tolist() == [3, 4, 5, 8, 0, 1]
    # block_id × 4 + offset
    assert batch.slot_mapping.tolist() == [7 * 4 + 3, 2 * 4, 2 * 4 + 1, 9 * 4, 1 * 4, 1 * 4 + 1]
    assert batch.query_start_loc.tolist() == [0, 3, 4, 6]
    assert batch.query_lens.tolist() == [3, 1, 2]
    assert batch.context_lens.tolist() == [3, 8, 0]
    assert batch.seq_lens.tolist() == [6, 9, 2]
    assert [table.tolist() for table in batch.block_tables] == [[7, 2], [5, 4, 9], [1]]
    assert batch.input_ids.dtype == batch.slot_mapping.dtype == torch.int64
    assert all(isinstance(table, np.ndarray) for table in batch.block_tables)
