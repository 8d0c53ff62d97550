"""Every way in which a step can be malformed is named, and nothing is written."""

import contextlib
from collections.abc import Callable
from typing import Any, cast

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from triptych.v1 import worker_pb2

from services.worker.step.step_checks import StepLimits, check_step
from shared.errors import Reason, ServiceError
from tests.unit.worker.step.steps import sampling

LIMITS = StepLimits(
    vocab_size=100, num_blocks=10, block_size=4, max_num_batched_tokens=20, max_model_len=30, max_logprobs=5
)
Change = Callable[[worker_pb2.Step], Any]


def good_step() -> worker_pb2.Step:
    """A chunk that begins in the middle of a block, and a decode."""
    chunk = worker_pb2.SequenceStep(
        sequence_key=1,
        token_ids=[5, 6, 7],
        context_len=6,
        block_ids=[3, 1, 9],
        samplings=[sampling(query_index=2, temperature=1.0, seed=1, logprobs=5)],
        prompt_logprobs=2,
        next_token_id=99,
    )
    decode = worker_pb2.SequenceStep(
        sequence_key=2, token_ids=[8], context_len=4, block_ids=[3, 2], samplings=[sampling()]
    )
    copies = [worker_pb2.BlockCopy(source_block_id=4, target_block_id=2)]
    return worker_pb2.Step(step_id=1, sequences=[chunk, decode], block_copies=copies)


def assign(target: Any, **values: Any) -> None:
    for name, value in values.items():
        field = getattr(target, name)
        if isinstance(value, list):
            del field[:]
            field.extend(value)
        elif isinstance(value, dict):
            field.update(value)
        else:
            setattr(target, name, value)


def sequence(index: int, **values: Any) -> Change:
    return lambda step: assign(step.sequences[index], **values)


def first_sampling(**values: Any) -> Change:
    return lambda step: assign(step.sequences[0].samplings[0], **values)


def copy(source: int, target: int) -> Change:
    return lambda step: step.block_copies.add(source_block_id=source, target_block_id=target)


def add_writer_of_block_9(step: worker_pb2.Step) -> None:
    step.sequences.add(sequence_key=3, token_ids=[1], block_ids=[9])


MALFORMED: list[tuple[Change, str]] = [
    (lambda step: step.ClearField("sequences"), "sequences"),
    (sequence(1, sequence_key=1), "sequences[1].sequence_key"),
    (sequence(0, token_ids=[]), "sequences[0].token_ids"),
    (sequence(0, token_ids=[5, 100, 7]), "sequences[0].token_ids[1]"),
    (sequence(0, token_ids=[5, 6, 2**32 - 1]), "sequences[0].token_ids[2]"),
    (sequence(0, context_len=28), "sequences[0].context_len"),
    (sequence(0, context_len=2**32 - 1), "sequences[0].context_len"),
    (sequence(0, block_ids=[3, 1]), "sequences[0].block_ids"),
    (sequence(0, block_ids=[3, 1, 9, 5]), "sequences[0].block_ids"),
    (sequence(0, block_ids=[3, 1, 10]), "sequences[0].block_ids[2]"),
    (sequence(0, block_ids=[0, 1, 9]), "sequences[0].block_ids[0]"),
    (sequence(0, block_ids=[3, 9, 9]), "sequences[0].block_ids[1]"),
    (sequence(1, block_ids=[3, 9]), "sequences[0].block_ids[2]"),
    (sequence(1, block_ids=[1, 2]), "sequences[0].block_ids[1]"),
    (add_writer_of_block_9, "sequences[0].block_ids[2]"),
    (sequence(0, token_ids=[1] * 21, context_len=0, block_ids=[3, 1, 4, 5, 6, 7]), "sequences.token_ids"),
    (sequence(0, prompt_logprobs=6), "sequences[0].prompt_logprobs"),
    (sequence(0, next_token_id=100), "sequences[0].next_token_id"),
    (copy(0, 5), "block_copies[1].source_block_id"),
    (copy(10, 5), "block_copies[1].source_block_id"),
    (copy(5, 0), "block_copies[1].target_block_id"),
    (copy(5, 10), "block_copies[1].target_block_id"),
    (copy(5, 2), "block_copies[1].target_block_id"),
    (copy(2, 5), "block_copies[0].target_block_id"),
    (copy(5, 5), "block_copies[1].target_block_id"),
    *(
        (first_sampling(**{name: value}), f"sequences[0].samplings[0].{path or name}")
        for name, values, path in [
            ("query_index", [3], ""),
            ("temperature", [-0.1, float("nan"), float("inf")], ""),
            ("top_p", [0.0, -0.5, 1.5, float("nan")], ""),
            ("min_p", [-0.1, 1.5, float("nan")], ""),
            ("presence_penalty", [-2.5, 2.5, float("nan")], ""),
            ("frequency_penalty", [-2.5, 2.5, float("nan")], ""),
            ("repetition_penalty", [0.0, -1.0, float("nan"), float("inf")], ""),
            ("prompt_token_ids", [[1, 100]], "prompt_token_ids[1]"),
            ("banned_token_ids", [[100]], "banned_token_ids[0]"),
            ("output_token_counts", [{100: 1}], "output_token_counts (key)"),
            ("logit_bias", [{100: 1.0}], "logit_bias (key)"),
            ("logit_bias", [{3: 100.5}, {3: float("nan")}], "logit_bias[3]"),
            ("allowed_token_mask", [b"\xff" * 14], ""),
            ("logprobs", [6], ""),
        ]
        for value in cast("list[Any]", values)
    ),
]


def test_a_well_formed_step_passes() -> None:
    check_step(good_step(), LIMITS)


def test_values_at_the_ends_of_their_ranges_pass() -> None:
    step = good_step()
    first_sampling(
        query_index=0, temperature=0.0, min_p=1.0, presence_penalty=-2.0, frequency_penalty=2.0,
        repetition_penalty=1e-3, prompt_token_ids=[0, 99], banned_token_ids=[99], top_k=2**32 - 1,
        output_token_counts={99: 2**32 - 1}, logit_bias={0: -100.0, 99: 100.0},
        allowed_token_mask=b"\xff" * 13, logprobs=0, seed=2**64 - 1, num_output_tokens=2**32 - 1,
    )(step)  # fmt: skip
    sequence(1, context_len=29, block_ids=[3, 2, 4, 5, 6, 7, 8, 3])(step)
    step.sequences[1].block_ids[7] = 2
    step.sequences[1].block_ids[1] = 3
    check_step(step, LIMITS)


@pytest.mark.parametrize(("change", "field"), MALFORMED)
def test_a_malformed_step_is_refused_by_the_field_at_fault(change: Change, field: str) -> None:
    step = good_step()
    change(step)
    with pytest.raises(ServiceError) as caught:
        check_step(step, LIMITS)
    assert caught.value.reason is Reason.MALFORMED_STEP
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field} is ")
    assert "allowed: " in caught.value.message


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_messages_pass_or_are_refused_but_never_break_the_check(content: bytes) -> None:
    step = good_step()
    with contextlib.suppress(DecodeError):
        step.MergeFromString(content)
    with contextlib.suppress(ServiceError):
        check_step(step, LIMITS)
