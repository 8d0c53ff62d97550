"""What loading refuses, and that it stops when the process is asked to end."""

from typing import Any

import pytest
from prometheus_client import REGISTRY

from services.worker import serve
from services.worker.config import WorkerConfig
from services.worker.model.configuration import ModelConfig
from shared.config import ConfigError
from shared.demo_model import PATH as DEMO_MODEL


def load(is_stopping: bool = False, **flags: Any) -> Any:
    config = WorkerConfig(**flags)
    return serve._load(config, ModelConfig.from_folder(config.model), lambda: is_stopping)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--device: .* allowed on this machine: auto"):
        load(device="mps")


def test_a_cache_larger_than_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^not enough memory for a cache of "):
        load(kv_cache_memory="90000GiB")


def test_a_cache_of_no_block_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fewer than 2 blocks"):
        load(kv_cache_memory="1KB")


def test_loading_stops_at_the_next_tensor() -> None:
    with pytest.raises(serve._LoadStoppedError):
        load(is_stopping=True)


def test_a_loaded_worker_exports_its_limits() -> None:
    limits: dict[str, Any] = {"num_blocks": 9, "max_num_batched_tokens": 100, "max_model_len": 60}
    runner = load(dtype="bfloat16", **limits)
    expected = {
        "kv_cache_blocks": 9,
        "kv_cache_bytes": runner._cache._blocks.nbytes,
        "max_num_batched_tokens": 100,
        "max_model_len_tokens": 60,
        # The file has the same weights in the same dtype, and a header.
        "weights_bytes": pytest.approx((DEMO_MODEL / "model.safetensors").stat().st_size, rel=0.02),
    }
    assert {name: REGISTRY.get_sample_value(f"triptych_worker_{name}") for name in expected} == expected
