"""Peak memory of a piece of work, measured in a process of its own."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]


def peak_mib(module: str, *arguments: str) -> float:
    """What a module that ends in `report_peak` says of itself."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, cwd=_ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout.splitlines()[-1])


def report_peak(work: Callable[[], Any]) -> None:
    """Runs the work, and prints by how much it raised this process's resident memory at its peak."""
    before = _status("VmRSS")
    # From now on VmHWM is the peak since.
    Path("/proc/self/clear_refs").write_text("5")
    kept = work()
    print(_status("VmHWM") - before)
    del kept


def _status(name: str) -> float:
    """In MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024
