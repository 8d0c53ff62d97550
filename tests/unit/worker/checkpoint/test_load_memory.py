"""Loading holds the model and one shard at a time, however the checkpoint is written."""

from pathlib import Path

import pytest
import torch

from services.worker.backends.reference.backend import ReferenceBackend
from services.worker.model.configuration import ModelConfig
from services.worker.model.deepseek import DeepseekModel
from services.worker.model.layers import Storage
from tests.support.fp8_checkpoints import to_fp8
from tests.unit.worker.checkpoint.zero_checkpoint import write_zeros
from tests.unit.worker.memory import peak_mib

MIB = 2**20
# Beside weights and shard: the tensor in hand, buffers of the allocator, pages of code that run for once.
SLACK_MIB = 48
# 62 M parameters.
CONFIG = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 20,
    "first_k_dense_replace": 20,
    "vocab_size": 4000,
}


@pytest.mark.parametrize(
    ("num_shards", "is_fp8", "dtype"),
    [(1, False, "float32"), (8, False, "bfloat16"), (8, True, "float32"), (1, True, "bfloat16")],
)
def test_the_peak_is_the_model_and_one_shard(
    num_shards: int, is_fp8: bool, dtype: str, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    write_zeros(folder, CONFIG, num_shards)
    if is_fp8:
        to_fp8(folder, (128, 128))
    meta = Storage(getattr(torch, dtype), torch.device("meta"))
    weights = DeepseekModel(ModelConfig.from_folder(folder), ReferenceBackend(), meta).weights()
    model_mib = sum(tensor.nbytes for tensor in weights.values()) / MIB
    shard_mib = max(path.stat().st_size for path in folder.glob("*.safetensors")) / MIB
    peak = peak_mib("tests.unit.worker.checkpoint.load_memory", str(folder), dtype)
    print(f"{peak:.0f} MiB: model {model_mib:.0f}, shard {shard_mib:.0f}")
    assert model_mib < peak < model_mib + shard_mib + SLACK_MIB
