"""FP8 through real sessions: a worker that serves it answers as one that serves its dequantised twin."""

import shutil
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import torch
from triptych.v1 import worker_pb2, worker_pb2_grpc

from tests.integration.worker.sessions import Session, step
from tests.qualification.continuations import random_tokens
from tests.qualification.test_fp8 import BLOCK_SIZES
from tests.support.fp8_checkpoints import to_fp8, to_twin
from tests.support.processes import started

NUM_TOKENS = 32


@pytest.mark.parametrize("name", BLOCK_SIZES)
async def test_an_fp8_worker_answers_as_its_twin(
    name: str, checkpoint_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, twin = tmp_path / "fp8", tmp_path / "twin"
    shutil.copytree(checkpoint_folder(name), folder)
    meant = to_fp8(folder, BLOCK_SIZES[name])
    shutil.copytree(folder, twin)
    to_twin(twin, meant, torch.float32)
    ours, theirs = [await _continuation(each) for each in (folder, twin)]
    assert len(ours) == NUM_TOKENS
    assert ours == theirs


async def _continuation(folder: Path) -> list[tuple[int, float]]:
    """Greedy tokens with their log-probabilities, from a worker process of its own."""
    with started("worker", "--model", str(folder), "--dtype", "float32", "--threads", "1") as worker:
        worker.wait_until_ready()
        async with grpc.aio.insecure_channel(str(worker.address)) as channel:
            session = Session(worker_pb2_grpc.WorkerServiceStub(channel))
            await session.open()
            token_ids, context_len = random_tokens(20, seed=3), 0
            continuation = []
            for step_id in range(1, NUM_TOKENS + 1):
                result = await session.execute(step(step_id, _sequence(token_ids, context_len)))
                sample = result.sequences[0].samples[0]
                continuation.append((sample.token_id, sample.logprobs.token.logprob))
                context_len += len(token_ids)
                token_ids = [sample.token_id]
            session.call.cancel()
    return continuation


def _sequence(token_ids: list[int], context_len: int) -> worker_pb2.SequenceStep:
    """One token is chosen after the last, with its log-probability; blocks in falling order."""
    num_blocks = -(-(context_len + len(token_ids)) // 16)
    sampling = worker_pb2.SamplingStep(
        query_index=len(token_ids) - 1, top_p=1, repetition_penalty=1, logprobs=1
    )
    return worker_pb2.SequenceStep(
        sequence_key=1,
        token_ids=token_ids,
        context_len=context_len,
        block_ids=[20 - index for index in range(num_blocks)],
        samplings=[sampling],
    )
