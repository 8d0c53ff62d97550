"""The cores that may be used: affinity and the control group's quota."""

import os
from pathlib import Path

import pytest

from shared import cores as cores_module

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
def test_a_container_s_quota_counts_as_fewer_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], cores: int, expected: int
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(cores_module, "_CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert cores_module.num_usable_cores() == expected
