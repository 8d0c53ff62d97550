"""Where rendering runs: small work on the event loop, the fastest place for it, large work on threads."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from services.render.time_limit import time_limit

P = ParamSpec("P")
T = TypeVar("T")

# Up to here work takes about a millisecond; the way to a thread and back costs half as much, and more when
# both sides want the interpreter's lock.
_INLINE_BYTES = 16 * 1024
# A template that needs longer for so little is one that loops.
_INLINE_SECONDS = 0.02


class _TakesLongerError(Exception):
    """The work is not as short as its size promised."""


class ComputePool:
    """Small work never queues behind large work, and large work never keeps the event loop."""

    def __init__(self, num_threads: int | None = None) -> None:
        """num_threads: for large work; None: one per core, less the event loop's."""
        threads = num_threads or max(1, (os.cpu_count() or 1) - 1)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="render")

    async def run(self, num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """work(*args, **kwargs). num_bytes: the size of what it works on. Work that turns out to be long is
        begun again on a thread: up to its first look at the clock it must not have changed anything."""
        if num_bytes <= _INLINE_BYTES:
            try:
                with time_limit(_INLINE_SECONDS, _TakesLongerError()):
                    return work(*args, **kwargs)
            except _TakesLongerError:
                pass
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Gives up what has not begun; running work ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)
