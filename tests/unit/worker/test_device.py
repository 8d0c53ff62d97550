"""Resolving "auto"."""

import time
from itertools import count

import pytest
import torch

from services.worker import device
from services.worker.model.configuration import CheckpointError
from shared.cores import num_usable_cores
from tests.unit.worker.model.configs import make_config

CPU = torch.device("cpu")


def test_the_device_that_is_there_is_chosen() -> None:
    assert device.choose_device("cpu") == CPU
    assert device.choose_device("auto").type in ("cpu", "mps", "cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has one")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"device is cuda; allowed on this machine: auto, .*cpu"):
        device.choose_device("cuda")


def test_a_type_asked_for_is_taken() -> None:
    assert device.choose_dtype("float32", CPU, make_config(dtype="bfloat16"))[0] == torch.float32
    assert device.choose_dtype("bfloat16", CPU, make_config(dtype="float32"))[0] == torch.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_auto_keeps_the_bits_that_bfloat16_lacks(dtype: str) -> None:
    chosen, why = device.choose_dtype("auto", CPU, make_config(dtype=dtype))
    assert (chosen, why) == (torch.float32, f"the checkpoint is in {dtype}")


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"amx_bf16": True, "avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": False, "avx512_bf16": True}, torch.float32),
        ({"neon": True}, torch.float32),
    ],
)
def test_auto_takes_what_this_processor_does_faster(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, bool], expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    chosen, why = device.choose_dtype("auto", CPU, make_config(dtype="bfloat16"))
    assert chosen == expected
    assert "this processor" in why


def test_auto_does_not_depend_on_how_busy_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of a pool answer alike: no clock may decide."""
    ticks = count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)) ** 2)
    config = make_config(dtype="bfloat16")
    assert len({device.choose_dtype("auto", CPU, config) for _ in range(5)}) == 1
    assert next(ticks) == 0


def test_threads_are_the_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    assert device.set_threads(None) == num_usable_cores()
    assert device.set_threads(5) == 5
    assert chosen == [num_usable_cores(), 5]
