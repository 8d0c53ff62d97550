"""Resolving "auto"."""

import os
from pathlib import Path

import pytest
import torch

from services.worker import device
from services.worker.model.config import CheckpointError
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


@pytest.mark.parametrize(("bfloat16_seconds", "expected"), [(0.5, torch.bfloat16), (3.0, torch.float32)])
def test_auto_takes_what_this_processor_does_faster(
    monkeypatch: pytest.MonkeyPatch, bfloat16_seconds: float, expected: torch.dtype
) -> None:
    seconds = {torch.float32: 1.0, torch.bfloat16: bfloat16_seconds}
    monkeypatch.setattr(device, "_matmul_seconds", seconds.__getitem__)
    chosen, why = device.choose_dtype("auto", CPU, make_config(dtype="bfloat16"))
    assert chosen == expected
    assert f"{bfloat16_seconds:.1f} times" in why


def test_auto_measures() -> None:
    chosen, why = device.choose_dtype("auto", CPU, make_config(dtype="bfloat16"))
    assert chosen in (torch.float32, torch.bfloat16)
    assert "this processor" in why


V1_QUOTA, V1_PERIOD = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("files", "cores", "expected"),
    [
        ({"cpu.max": "max 100000"}, 8, 8),
        ({"cpu.max": "200000 100000"}, 8, 2),
        ({"cpu.max": "250000 100000"}, 8, 2),
        ({"cpu.max": "50000 100000"}, 8, 1),
        ({"cpu.max": "900000 100000"}, 8, 8),
        ({"cpu.max": "?"}, 3, 3),
        ({V1_QUOTA: "-1\n", V1_PERIOD: "100000\n"}, 8, 8),
        ({V1_QUOTA: "300000\n", V1_PERIOD: "100000\n"}, 8, 3),
        ({V1_QUOTA: "10000\n", V1_PERIOD: "100000\n"}, 8, 1),
        ({V1_QUOTA: "300000\n"}, 8, 8),
        ({}, 3, 3),
    ],
)
def test_threads_are_the_cores_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], cores: int, expected: int
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(device, "_CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    assert device.set_threads(None) == expected
    assert device.set_threads(5) == 5
    assert chosen == [expected, 5]
