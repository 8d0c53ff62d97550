"""Loads a folder in fp32 as a worker process does, and reports the peak (see memory.py)."""

import sys
from pathlib import Path

from services.worker.tuning import tune_process

if __name__ == "__main__":
    tune_process()
    import torch

    from services.worker.backends.reference.backend import ReferenceBackend
    from services.worker.checkpoint.loader import load_checkpoint
    from tests.unit.worker.memory import report_peak

    dtype = getattr(torch, sys.argv[2])
    report_peak(
        lambda: load_checkpoint(
            Path(sys.argv[1]), dtype=dtype, device=torch.device("cpu"), backend=ReferenceBackend()
        )
    )
