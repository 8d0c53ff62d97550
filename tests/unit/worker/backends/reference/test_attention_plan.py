"""Who attends how: forms, groups and padding."""

import random

import torch
from triptych.v1 import worker_pb2

from services.worker.backends.reference.attention_plan import AttentionPlan, plan_attention
from services.worker.backends.reference.mla import is_mha_cheaper
from services.worker.model.input_batch import InputBatch
from tests.unit.worker.model.configs import make_config

CONFIG = make_config()
BLOCK_SIZE = 4


def plan(*lengths: tuple[int, int]) -> tuple[AttentionPlan, InputBatch]:
    """The plan for sequences of these query and context lengths."""
    sequences, next_block = [], 1
    for query_len, context_len in lengths:
        num_blocks = -(-(query_len + context_len) // BLOCK_SIZE)
        block_ids = range(next_block, next_block + num_blocks)
        sequences.append(
            worker_pb2.SequenceStep(token_ids=[0] * query_len, context_len=context_len, block_ids=block_ids)
        )
        next_block += num_blocks
    step = worker_pb2.Step(sequences=sequences)
    batch = InputBatch.from_step(step, block_size=BLOCK_SIZE, device=torch.device("cpu"))
    return plan_attention(CONFIG, batch, torch.empty(0), torch.empty(0)), batch


def rows_of(rows: slice | torch.Tensor, num_tokens: int) -> list[int]:
    return torch.arange(num_tokens)[rows].tolist()


def test_decodes_of_similar_length_share_a_group_that_reads_the_null_slot_past_their_ends() -> None:
    made, _ = plan((1, 4), (1, 9), (1, 7))
    (group,) = made.mqa_groups
    assert group.rows == slice(0, 3)
    assert group.positions.tolist() == [[4], [9], [7]]
    assert group.slots[0].tolist() == [4, 5, 6, 7, 8, 0, 0, 0, 0, 0]
    assert group.slots[1].tolist() == list(range(12, 22))


def test_lengths_far_apart_do_not_pad_each_other() -> None:
    made, _ = plan((1, 2000), (1, 5), (1, 1800), (1, 6))
    assert [group.slots.shape for group in made.mqa_groups] == [(2, 7), (2, 2001)]
    assert [rows_of(group.rows, 4) for group in made.mqa_groups] == [[1, 3], [0, 2]]


def test_a_long_chunk_attends_in_the_other_form() -> None:
    made, _ = plan((1, 30), (60, 20), (1, 31))
    assert is_mha_cheaper(CONFIG, 60, 80)
    (sequence,) = made.mha_sequences
    assert sequence.rows == slice(1, 61)
    assert len(sequence.slots) == 80
    assert [rows_of(group.rows, 62) for group in made.mqa_groups] == [[0, 61]]


def test_every_token_attends_exactly_once() -> None:
    numbers = random.Random(4)
    for _ in range(50):
        lengths = [(numbers.choice([1, 1, 1, 2, 3, 40]), numbers.randrange(300)) for _ in range(9)]
        made, batch = plan(*lengths)
        num_tokens = len(batch.input_ids)
        rows = [row for sequence in made.mha_sequences for row in rows_of(sequence.rows, num_tokens)]
        for group in made.mqa_groups:
            rows += rows_of(group.rows, num_tokens)
            assert torch.equal(group.positions.flatten(), batch.positions[group.rows])
        assert sorted(rows) == list(range(num_tokens))
