"""What transformers needs for the same work, on the same weights, in the same run."""

from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

import torch
from transformers import DeepseekV3ForCausalLM

from tests.bench.workload import DECODE_TOKENS, Speed, prompts


def measure_transformers(folder: Path, dtype: str, prefill_len: int, batch_sizes: Iterable[int]) -> Speed:
    """Prefill of one prompt, and decode at each batch size."""
    model = DeepseekV3ForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    _generate(model, prompts(1, prefill_len, seed=99), 2)
    seconds = min(_generate(model, prompts(1, prefill_len, seed=seed), 1) for seed in range(2))
    decode = {}
    for size in batch_sizes:
        batch = prompts(size, 32, seed=size)
        first, whole = _generate(model, batch, 1), _generate(model, batch, 1 + DECODE_TOKENS)
        decode[size] = size * DECODE_TOKENS / (whole - first)
    return Speed(prefill_len / seconds, decode)


@torch.inference_mode()
def _generate(model: DeepseekV3ForCausalLM, batch: list[list[int]], num_tokens: int) -> float:
    """Seconds."""
    started = perf_counter()
    ids = torch.tensor(batch)
    model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False, use_cache=True
    )
    return perf_counter() - started
