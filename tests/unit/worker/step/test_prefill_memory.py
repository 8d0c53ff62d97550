"""A prompt of 32,000 tokens runs in memory that hardly grows with its length.

The slowest of the worker's unit tests (15 s): a shorter context's scores would hide in the memory that a pass
needs anyway.
"""

from pathlib import Path

from tests.unit.worker.checkpoint.zero_checkpoint import write_zeros
from tests.unit.worker.memory import peak_mib

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 40_000,
}
# All scores of one chunk of 8,192 tokens over this context, in fp32: 1,000 MiB.
NUM_TOKENS = 32_000
# A few tiles of 32 MiB, the chunk's own activations, and what malloc keeps between them.
LIMIT_MIB = 400


def test_a_prompt_of_32000_tokens_needs_little_more_memory_than_one_of_8192(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    write_zeros(folder, SIZES)
    short, long = (
        peak_mib("tests.unit.worker.step.prefill_memory", str(folder), str(n)) for n in (8192, NUM_TOKENS)
    )
    print(f"8,192 tokens: {short:.0f} MiB; {NUM_TOKENS} tokens: {long:.0f} MiB")
    assert long < LIMIT_MIB
    # Four times as long.
    assert long < 2 * short
