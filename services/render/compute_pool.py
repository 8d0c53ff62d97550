"""Where rendering runs: the smallest work on the event loop, where it is fastest, all other on threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from services.render.time_limit import time_limit
from shared.cores import num_usable_cores

P = ParamSpec("P")
T = TypeVar("T")

# Up to here a request takes a millisecond, or five if it is all tiny messages. The way to a thread and back
# costs half a millisecond, and more when both sides want the interpreter's lock.
_INLINE_BYTES = 4 * 1024
# What a template's loops may take of the event loop, and of the thread for small work, before the request
# counts as large.
_INLINE_SECONDS = 0.02
_SMALL_SECONDS = 0.1
# Up to here one step of a stream takes a few milliseconds.
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
        threads = num_threads or max(1, num_usable_cores() - 1)
        # Each thread costs the tokenizer's memory: small work is short enough to take turns on one.
        self._small = ThreadPoolExecutor(1, thread_name_prefix="render-small")
        self._large = ThreadPoolExecutor(threads, thread_name_prefix="render-large")

    async def run(self, num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """work(*args, **kwargs). num_bytes: the size of what it works on. It may be begun anew on a thread:
        until it looks at the clock for the last time it must not have changed anything."""
        is_inline = num_bytes <= _INLINE_BYTES

        def work_for_a_while() -> T:
            with time_limit(_INLINE_SECONDS if is_inline else _SMALL_SECONDS, _TakesLongerError()):
                return work(*args, **kwargs)

        if num_bytes <= _SMALL_BYTES:
            try:
                return work_for_a_while() if is_inline else await _run_on(self._small, work_for_a_while)
            except _TakesLongerError:
                pass
        return await _run_on(self._large, lambda: work(*args, **kwargs))

    async def run_step(self, num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One step of a stream, begun once: at once if it is as small as most are, else on a thread."""
        if num_bytes <= _INLINE_STEP_BYTES:
            return work(*args, **kwargs)
        executor = self._small if num_bytes <= _SMALL_BYTES else self._large
        return await _run_on(executor, lambda: work(*args, **kwargs))


async def _run_on(executor: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, work)
