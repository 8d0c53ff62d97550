"""How many processor cores this process may use."""

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def num_usable_cores() -> int:
    """Cores by affinity, cut to the control group's quota: a container sees all cores and may use few."""
    has_affinity = hasattr(os, "sched_getaffinity")
    num_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, math.floor(min(num_cores, _quota_in_cores())))


def _quota_in_cores() -> float:
    """What the control group grants, as cgroup v2 says it or as v1 does; infinity if it sets no limit."""
    try:
        if (v2 := _CGROUPS / "cpu.max").exists():
            quota, period = v2.read_text().split()
        else:
            v1 = _CGROUPS / "cpu"
            quota, period = ((v1 / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return math.inf if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):
        return math.inf
