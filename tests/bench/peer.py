"""What transformers needs for the same work, on the same weights, in the same run."""

from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

import torch
from transformers import DeepseekV3ForCausalLM, StoppingCriteria, StoppingCriteriaList

from tests.bench.workload import (
    BATCH_PROMPT_LEN,
    BATCH_SIZES,
    DECODE_TOKENS,
    TEMPERATURE,
    TOP_P,
    Speed,
    prompt_len,
    prompts,
)


def measure_transformers(folder: Path, dtype: str, contexts: Iterable[int]) -> Speed:
    """Prefill and decode at each context, and decode at each batch size."""
    model = DeepseekV3ForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    _run(model, prompts(1, BATCH_PROMPT_LEN, seed=99), 2)
    speed = Speed()
    for context in contexts:
        prefill, decode = _run(model, prompts(1, prompt_len(context), seed=context), DECODE_TOKENS)
        speed.prefill[context] = prompt_len(context) / prefill
        speed.decode_at[context] = DECODE_TOKENS / decode
    for size in BATCH_SIZES:
        batch = prompts(size, BATCH_PROMPT_LEN, seed=size)
        for is_sampled, speeds in ((False, speed.greedy), (True, speed.sampled)):
            _, decode = _run(model, batch, DECODE_TOKENS, is_sampled=is_sampled)
            speeds[size] = size * DECODE_TOKENS / decode
    return speed


@torch.inference_mode()
def _run(
    model: DeepseekV3ForCausalLM, batch: list[list[int]], num_tokens: int, *, is_sampled: bool = False
) -> tuple[float, float]:
    """Seconds of the first token, and of so many after it."""
    sampling = {"do_sample": True, "temperature": TEMPERATURE, "top_p": TOP_P, "top_k": 0}
    settings = sampling if is_sampled else {"do_sample": False}
    ids = torch.tensor(batch)
    clock = _Clock()
    started = perf_counter()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=1 + num_tokens,
        use_cache=True,
        stopping_criteria=StoppingCriteriaList([clock]),
        **settings,
    )
    return clock.times[0] - started, clock.times[-1] - clock.times[0]


class _Clock(StoppingCriteria):
    """Asked after each token whether to stop: never, but it notes the time."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        self.times.append(perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)
