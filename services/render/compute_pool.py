"""Where rendering runs: the smallest work on the event loop, where it is fastest, all other on threads."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from services.render.time_limit import time_limit

P = ParamSpec("P")
T = TypeVar("T")

# Up to here a request takes a millisecond, or five if it is all tiny messages. The way to a thread and back
# costs half a millisecond, and more when both sides want the interpreter's lock.
_INLINE_BYTES = 4 * 1024
# What the loops of a template may take of the event loop before it moves to a thread.
_INLINE_SECONDS = 0.02
# Up to here one step of a stream takes a few milliseconds, whatever its stop strings.
_INLINE_STEP_BYTES = 512
# Up to here a request takes a few milliseconds to tokenize.
_SMALL_BYTES = 16 * 1024


class _TakesLongerError(Exception):
    """The work is not as short as its size promised."""


class ComputePool:
    """Small work never queues behind large work, and no large work keeps the event loop. What loops for long
    is large, whatever its size."""

    def __init__(self, num_threads: int | None = None) -> None:
        """num_threads: for large work; None: one per core, less the event loop's."""
        threads = num_threads or max(1, (os.cpu_count() or 1) - 1)
        # Each thread costs the tokenizer's memory: small work is short enough to take turns on one.
        self._small = ThreadPoolExecutor(1, thread_name_prefix="render-small")
        self._large = ThreadPoolExecutor(threads, thread_name_prefix="render-large")

    async def run(self, num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """work(*args, **kwargs). num_bytes: the size of what it works on. It may be begun anew on a thread:
        until it looks at the clock for the last time it must not have changed anything."""
        if num_bytes > _INLINE_BYTES:
            return await self._run_on_thread(num_bytes, work, *args, **kwargs)
        try:
            with time_limit(_INLINE_SECONDS, _TakesLongerError()):
                return work(*args, **kwargs)
        except _TakesLongerError:
            return await _run_on(self._large, work, *args, **kwargs)

    async def run_step(self, num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One step of a stream, begun once: at once if it is as small as most are, else on a thread."""
        if num_bytes > _INLINE_STEP_BYTES:
            return await self._run_on_thread(num_bytes, work, *args, **kwargs)
        return work(*args, **kwargs)

    async def _run_on_thread(
        self, num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        executor = self._small if num_bytes <= _SMALL_BYTES else self._large
        return await _run_on(executor, work, *args, **kwargs)

    def close(self) -> None:
        """Gives up what has not begun; running work ends by itself."""
        for executor in (self._small, self._large):
            executor.shutdown(wait=False, cancel_futures=True)


async def _run_on(executor: Executor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, lambda: work(*args, **kwargs))
