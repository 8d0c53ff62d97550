"""What must be set before torch is imported: how its threads wait, and what malloc returns to the kernel."""

import ctypes
import os
import sys

# mallopt's parameters, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_NEVER = 2**31 - 1


def tune_process() -> None:
    """Call once, in the process that becomes a worker."""
    bound_spinning()
    keep_freed_memory()


def bound_spinning() -> None:
    """By default an OpenMP thread that waits for the others spins for many milliseconds.

    On a core shared with another process it then takes the time of the thread that it waits for: a decode of
    the embedded model takes 740 ms, and about 10 ms with spinning bounded. With too low a bound, threads on
    idle cores fall asleep within a pass (tests/bench/LOG.md). libgomp reads the variable when it is loaded.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")


def keep_freed_memory() -> None:
    """Makes malloc reuse the memory of large temporary tensors instead of returning it to the kernel.

    By default glibc maps and unmaps each tensor above 32 MiB, and every large one of a thread that is not the
    first: half the time of a long prefill goes into page faults. So there is one arena, never trimmed.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent from other C libraries
        for parameter, value in ((_M_MMAP_THRESHOLD, _NEVER), (_M_TRIM_THRESHOLD, _NEVER), (_M_ARENA_MAX, 1)):
            if mallopt is not None:
                mallopt(parameter, value)
