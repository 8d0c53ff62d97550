"""Steps for tests, and a scheduler in miniature that advances sequences through a ModelRunner."""

import random
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from triptych.v1 import worker_pb2

from services.worker.checkpoint.loader import LoadedModel
from services.worker.model.input_batch import InputBatch
from services.worker.model.kv_cache import KVCache
from services.worker.step.model_runner import ModelRunner

CPU = torch.device("cpu")


def sampling(**values: Any) -> worker_pb2.SamplingStep:
    """A greedy SamplingStep, but for the values given."""
    neutral = {"temperature": 0.0, "top_p": 1.0, "repetition_penalty": 1.0}
    return worker_pb2.SamplingStep(**{**neutral, **values})


def make_runner(loaded: LoadedModel, *, num_blocks: int = 64, block_size: int = 4) -> ModelRunner:
    """A runner whose blocks are small, so that every test crosses many."""
    return ModelRunner(
        loaded, num_blocks=num_blocks, block_size=block_size, max_num_batched_tokens=4096, max_model_len=4096
    )


def all_logits(loaded: LoadedModel, token_ids: list[int], chunk: int, *, block_size: int = 4) -> torch.Tensor:
    """Logits [tokens, vocab] of one sequence computed in chunks, its blocks in an order of no pattern."""
    num_blocks = -(-len(token_ids) // block_size)
    block_ids = random.Random(3).sample(range(1, num_blocks + 4), num_blocks)
    cache = KVCache(
        loaded.config, num_blocks=num_blocks + 4, block_size=block_size, dtype=loaded.model.dtype, device=CPU
    )
    logits = []
    for start in range(0, len(token_ids), chunk):
        stop = min(start + chunk, len(token_ids))
        sequence = worker_pb2.SequenceStep(
            token_ids=token_ids[start:stop], context_len=start, block_ids=block_ids[: -(-stop // block_size)]
        )
        batch = InputBatch.from_step(worker_pb2.Step(sequences=[sequence]), block_size=block_size, device=CPU)
        with torch.inference_mode():
            logits.append(loaded.model.logits(loaded.model.forward(batch, cache)))
    return torch.cat(logits)


class Executor(Protocol):
    """A ModelRunner, or a session of a worker elsewhere."""

    def execute(self, step: worker_pb2.Step) -> worker_pb2.StepResult:
        """One pass."""


@dataclass
class Generation:
    """One sequence on its way: a prompt in chunks, then tokens one by one; greedy, or as `params` say."""

    key: int
    token_ids: list[int]
    num_to_generate: int
    chunk: int
    block_ids: list[int]
    first_step: int = 0
    params: dict[str, Any] = field(default_factory=dict)
    num_computed: int = 0
    outputs: list[int] = field(default_factory=list)

    def sequence_step(self, block_size: int) -> worker_pb2.SequenceStep:
        """The next chunk, or the last token."""
        chunk = self.token_ids[self.num_computed : self.num_computed + self.chunk]
        seq_len = self.num_computed + len(chunk)
        is_last = seq_len == len(self.token_ids)
        return worker_pb2.SequenceStep(
            sequence_key=self.key,
            token_ids=chunk,
            context_len=self.num_computed,
            block_ids=self.block_ids[: -(-seq_len // block_size)],
            samplings=[self.sampling_step(len(chunk) - 1)] if is_last else [],
        )

    def sampling_step(
        self, query_index: int, num_output_tokens: int | None = None
    ) -> worker_pb2.SamplingStep:
        """How the token after so many outputs is chosen; by default the next."""
        count = len(self.outputs) if num_output_tokens is None else num_output_tokens
        return sampling(query_index=query_index, num_output_tokens=count, **self.params)

    def restart(self, block_ids: list[int]) -> None:
        """After preemption or a move: nothing is in the cache, and the tokens so far stand."""
        self.num_computed, self.block_ids = 0, block_ids

    def update(self, result: worker_pb2.SequenceResult, num_tokens: int) -> None:
        self.num_computed += num_tokens
        for sample in result.samples:
            assert sample.WhichOneof("outcome") == "token_id", sample.error.message
            self.outputs.append(sample.token_id)
            self.token_ids.append(sample.token_id)

    @property
    def is_finished(self) -> bool:
        return len(self.outputs) == self.num_to_generate


def advance(executor: Executor, generations: list[Generation], *, block_size: int = 4) -> None:
    """One step of all of these."""
    step = worker_pb2.Step(sequences=[g.sequence_step(block_size) for g in generations])
    result = executor.execute(step)
    for generation, asked, answered in zip(generations, step.sequences, result.sequences, strict=True):
        generation.update(answered, len(asked.token_ids))


def run_generations(executor: Executor, generations: list[Generation], *, block_size: int = 4) -> None:
    """Advances all that have begun in each step, until the last has ended."""
    step_id = 0
    while unfinished := [generation for generation in generations if not generation.is_finished]:
        if active := [generation for generation in unfinished if generation.first_step <= step_id]:
            advance(executor, active, block_size=block_size)
        step_id += 1
