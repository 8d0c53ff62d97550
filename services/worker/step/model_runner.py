"""Executes steps: checks, builds tensors, runs the model, chooses tokens. Called by one thread.

It owns the worker's whole state: the weights and the cache. A step leaves only its cache rows behind.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor
from triptych.v1 import types_pb2, worker_pb2

from services.worker.checkpoint.loader import LoadedModel
from services.worker.model.input_batch import InputBatch
from services.worker.model.kv_cache import KVCache, bytes_per_block
from services.worker.sampling.logprobs import finite, position_logprobs
from services.worker.sampling.sampler import sample
from services.worker.step.poison import CachePoison
from services.worker.step.step_checks import StepLimits, check_step
from shared.errors import Reason, ServiceError

# Most alternatives per position: a bound on the size of results.
MAX_LOGPROBS = 20
# Elements of logits that are computed at once: 32 MiB in fp32.
_MAX_LOGITS = 8 * 1024 * 1024

T = TypeVar("T")


class ModelRunner:
    def __init__(
        self,
        loaded: LoadedModel,
        *,
        num_blocks: int,
        block_size: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        poison_cache: bool = False,
    ) -> None:
        self._loaded = loaded
        self._model = loaded.model
        self._cache = KVCache(
            loaded.config,
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=self._model.dtype,
            device=self._model.device,
        )
        num_layers = loaded.config.num_hidden_layers
        self._poison = (
            CachePoison(self._cache, num_layers=num_layers, block_size=block_size) if poison_cache else None
        )
        self._limits = StepLimits(
            vocab_size=loaded.config.vocab_size,
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=min(max_model_len, loaded.config.max_position_embeddings),
            max_logprobs=min(MAX_LOGPROBS, loaded.config.vocab_size),
        )

    def model_info(self) -> types_pb2.ModelInfo:
        """All but the served name, which the servicer fills in."""
        config, limits = self._loaded.config, self._limits
        return types_pb2.ModelInfo(
            model_fingerprint=self._loaded.model_fingerprint,
            tokenizer_fingerprint=self._loaded.tokenizer_fingerprint,
            vocab_size=config.vocab_size,
            max_model_len=limits.max_model_len,
            eos_token_ids=config.eos_token_ids,
            block_size=limits.block_size,
            num_blocks=limits.num_blocks,
            bytes_per_block=bytes_per_block(config, limits.block_size, self._model.dtype),
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_logprobs=limits.max_logprobs,
            device=self._model.device.type,
            weight_dtype=str(self._model.dtype).removeprefix("torch."),
            backend=self._model.backend.name,
        )

    @torch.inference_mode()
    def execute(self, step: worker_pb2.Step) -> worker_pb2.StepResult:
        """One pass. ServiceError: MALFORMED_STEP, before anything is written, or OUT_OF_MEMORY.

        The caller fills in queue_seconds.
        """
        with _memory_errors():
            started = time.perf_counter()
            check_step(step, self._limits)
            batch = InputBatch.from_step(step, block_size=self._limits.block_size, device=self._model.device)
            copies = step.block_copies
            self._cache.copy_blocks([c.source_block_id for c in copies], [c.target_block_id for c in copies])
            if self._poison is not None:
                self._poison.before_step(batch)
            prepared = time.perf_counter()
            hidden = self._model.forward(batch, self._cache)
            forwarded = time.perf_counter()
            timings = worker_pb2.StepTimings(
                prepare_seconds=prepared - started, forward_seconds=forwarded - prepared
            )
            sequences = self._results(step, batch, hidden, timings)
            timings.sample_seconds = (
                time.perf_counter() - started - timings.prepare_seconds - timings.forward_seconds
            )
        return worker_pb2.StepResult(step_id=step.step_id, sequences=sequences, timings=timings)

    def _results(
        self, step: worker_pb2.Step, batch: InputBatch, hidden: Tensor, timings: worker_pb2.StepTimings
    ) -> list[worker_pb2.SequenceResult]:
        starts = batch.query_start_loc.tolist()
        samplings = [
            (starts[i] + sampling.query_index, sampling)
            for i, sequence in enumerate(step.sequences)
            for sampling in sequence.samplings
        ]
        samples = iter(self._samples(samplings, hidden, timings))
        return [
            worker_pb2.SequenceResult(
                sequence_key=sequence.sequence_key,
                samples=[next(samples) for _ in sequence.samplings],
                prompt_logprobs=self._prompt_logprobs(sequence, starts[i], hidden, timings),
            )
            for i, sequence in enumerate(step.sequences)
        ]

    def _samples(
        self,
        samplings: list[tuple[int, worker_pb2.SamplingStep]],
        hidden: Tensor,
        timings: worker_pb2.StepTimings,
    ) -> list[worker_pb2.Sample]:
        """One per pair (row of `hidden`, SamplingStep). The logits of a shared row are computed once."""
        samples: list[worker_pb2.Sample] = []
        for chunk in _chunks(samplings, self._max_rows):
            rows = sorted({row for row, _ in chunk})
            logits = self._logits(hidden, rows, timings)
            index = {row: i for i, row in enumerate(rows)}
            samples += sample(logits, [index[row] for row, _ in chunk], [sampling for _, sampling in chunk])
        return samples

    def _prompt_logprobs(
        self, sequence: worker_pb2.SequenceStep, start: int, hidden: Tensor, timings: worker_pb2.StepTimings
    ) -> list[types_pb2.PositionLogprobs]:
        """Of token_ids[1:] and next_token_id, each from the row before it. In a row of NaN all are equal."""
        if not sequence.HasField("prompt_logprobs"):
            return []
        predicted = [*sequence.token_ids[1:]]
        predicted += [sequence.next_token_id] if sequence.HasField("next_token_id") else []
        results: list[types_pb2.PositionLogprobs] = []
        for chunk in _chunks(list(enumerate(predicted, start)), self._max_rows):
            logits = finite(self._logits(hidden, [row for row, _ in chunk], timings))
            results += position_logprobs(
                logits, [token_id for _, token_id in chunk], sequence.prompt_logprobs
            )
        return results

    @property
    def _max_rows(self) -> int:
        return max(1, _MAX_LOGITS // self._limits.vocab_size)

    def _logits(self, hidden: Tensor, rows: list[int], timings: worker_pb2.StepTimings) -> Tensor:
        """Logits [rows, vocab] on the CPU. Their time counts as the forward pass's."""
        started = time.perf_counter()
        logits = self._model.logits(hidden[torch.tensor(rows, device=hidden.device)]).cpu()
        timings.forward_seconds += time.perf_counter() - started
        return logits


def _chunks(items: list[T], size: int) -> Iterator[list[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


@contextmanager
def _memory_errors() -> Iterator[None]:
    """torch reports a lack of memory as MemoryError, as its own error, or as RuntimeError with this text."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_out_of_memory = not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError)
        if not is_out_of_memory and "can't allocate memory" not in str(error):
            raise
        raise ServiceError(Reason.OUT_OF_MEMORY, "the step needs more memory than there is") from error
