"""What must be set in this process before torch is imported: how its threads wait, what malloc gives back."""

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
    """A thread of torch's that waits for the others spins for many milliseconds by default.

    With a core that anybody else uses too (another service, a neighbour), that takes the time which the
    thread waited for needs: a decode of the embedded model takes 740 ms then, and about 10 ms with spinning
    bounded. Bounded too tightly, threads on idle cores fall asleep within a pass (tests/bench/LOG.md).
    libgomp reads the variable when it is loaded.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")


def keep_freed_memory() -> None:
    """Large temporary tensors are reused instead of given back to the kernel and faulted in again.

    glibc maps and unmaps each tensor above 32 MiB, and every large one of a thread that is not the first.
    Half the time of a long prefill goes into page faults then. One arena, which keeps what it had.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent from other C libraries
        for parameter, value in ((_M_MMAP_THRESHOLD, _NEVER), (_M_TRIM_THRESHOLD, _NEVER), (_M_ARENA_MAX, 1)):
            if mallopt is not None:
                mallopt(parameter, value)
