"""FP8 checkpoints: what the worker loads is what their scales say, and transformers computes the same."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from services.worker.backends.reference.backend import ReferenceBackend
from services.worker.checkpoint.loader import load_checkpoint
from tests.qualification.continuations import TOLERANCE, random_tokens
from tests.support.checkpoints import load_with_transformers
from tests.support.fp8_checkpoints import to_fp8, to_twin
from tests.unit.worker.step.steps import all_logits

CPU = torch.device("cpu")
# Blocks that end neither at a head's edge nor at the tensor's; the release's own, larger than these tensors.
BLOCK_SIZES = {"v2_plain": (40, 28), "v3_grouped_yarn": (48, 20), "v3_sixteen_heads": (128, 128)}


@pytest.mark.parametrize("name", BLOCK_SIZES)
def test_an_fp8_checkpoint_equals_its_dequantised_twin(
    name: str, checkpoint_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, twin = tmp_path / "fp8", tmp_path / "twin"
    shutil.copytree(checkpoint_folder(name), folder)
    meant = to_fp8(folder, BLOCK_SIZES[name])
    token_ids = random_tokens(40, seed=2)
    for dtype in (torch.bfloat16, torch.float32):
        shutil.copytree(folder, twin, dirs_exist_ok=True)
        to_twin(twin, meant, dtype)
        ours, theirs = (
            load_checkpoint(each, dtype=dtype, device=CPU, backend=ReferenceBackend())
            for each in (folder, twin)
        )
        assert all(
            torch.equal(tensor, theirs.model.weights()[name]) for name, tensor in ours.model.weights().items()
        )
        logits = all_logits(ours, token_ids, 40)
        assert torch.equal(logits, all_logits(theirs, token_ids, 40))
    with torch.inference_mode():
        expected = load_with_transformers(twin)(torch.tensor([token_ids])).logits[0]
    torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE)
