"""Threads for rendering, so that the event loop only ever moves messages."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Up to here a request takes a few milliseconds to tokenize.
_SMALL_BYTES = 16 * 1024
# Up to here derendering an event takes less time than the way to a thread and back.
_INLINE_BYTES = 1024


class ComputePool:
    """Two pools of threads, so that small requests never queue behind large ones."""

    def __init__(self, num_threads: int | None = None) -> None:
        """num_threads: of each pool; None: one per core."""
        threads = num_threads or os.cpu_count() or 1
        self._small = ThreadPoolExecutor(threads, thread_name_prefix="render-small")
        self._large = ThreadPoolExecutor(threads, thread_name_prefix="render-large")

    async def run(self, num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """work(*args, **kwargs), on a thread. num_bytes: the size of what it works on."""
        pool = self._small if num_bytes <= _SMALL_BYTES else self._large
        return await asyncio.get_running_loop().run_in_executor(pool, lambda: work(*args, **kwargs))

    async def run_step(self, num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One step of a stream: at once if it is as small as most are, else as `run`."""
        if num_bytes <= _INLINE_BYTES:
            return work(*args, **kwargs)
        return await self.run(num_bytes, work, *args, **kwargs)

    def close(self) -> None:
        """Gives up what has not begun; running work ends by itself."""
        for pool in (self._small, self._large):
            pool.shutdown(wait=False, cancel_futures=True)
