"""Prefills a prompt of so many tokens in the worker's chunks, and reports the peak (see memory.py).

Arguments: the folder, the tokens. One warm-up step comes first: what remains is what the context costs.
"""

import sys
from pathlib import Path

from services.worker.tuning import tune_process

if __name__ == "__main__":
    tune_process()
    import torch
    from triptych.v1 import worker_pb2

    from services.worker.backends.reference.backend import ReferenceBackend
    from services.worker.checkpoint.loader import load_checkpoint
    from services.worker.step.model_runner import ModelRunner
    from tests.unit.worker.memory import report_peak
    from tests.unit.worker.step.steps import Generation, run_generations

    num_tokens = int(sys.argv[2])
    loaded = load_checkpoint(
        Path(sys.argv[1]), dtype=torch.float32, device=torch.device("cpu"), backend=ReferenceBackend()
    )
    num_blocks = num_tokens // 16 + 3
    runner = ModelRunner(
        loaded, num_blocks=num_blocks, block_size=16, max_num_batched_tokens=8192, max_model_len=40_000
    )
    warm_up = worker_pb2.SequenceStep(token_ids=[1] * 64, block_ids=[1, 2, 3, 4])
    runner.execute(worker_pb2.Step(sequences=[warm_up]))
    blocks = list(range(num_blocks - 1, 0, -1))
    prompt = [token % 199 for token in range(num_tokens)]
    generation = Generation(0, prompt, 2, 8192, blocks)
    report_peak(lambda: run_generations(runner, [generation], block_size=16))
