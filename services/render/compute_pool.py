"""Where rendering runs: the smallest work on the event loop, where it is fastest, all other on threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from threading import Event, Timer
from time import monotonic
from typing import ParamSpec, TypeVar, TypeVarTuple

from services.render.memory import give_back_memory
from services.render.time_limit import check_clock, time_limit, until_abandoned
from shared.cores import num_usable_cores
from shared.errors import Reason, ServiceError

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Up to here a request takes a millisecond, or five if it is all tiny messages. The way to a thread and back
# costs a tenth of a millisecond, and more when both sides want the interpreter's lock.
_INLINE_BYTES = 4 * 1024
# What a template's loops may take of the event loop, and of the thread for small work, before the request
# counts as long.
_INLINE_SECONDS = 0.02
_SMALL_SECONDS = 0.1
# Up to here one step of a stream takes a few milliseconds.
_INLINE_STEP_BYTES = 512
# Up to here a request takes a few milliseconds to tokenize.
_SMALL_BYTES = 16 * 1024
# Up to here a fraction of a second, as a chat of 200,000 tokens does. What is larger may take many seconds,
# and 50 times its size in memory.
_LONG_BYTES = 1024 * 1024
# After which a thread that has ended has freed its memory.
_THREAD_END_SECONDS = 0.1


class _TakesLongerError(Exception):
    """The work is not as short as its size promised."""


class ComputePool:
    """Small work never queues behind long work, nor long work behind large work, and none of them keeps the
    event loop. What loops for long is long, whatever its size."""

    def __init__(self, num_threads: int | None = None) -> None:
        """num_threads: for long work, and as many for large work; None: one per core, at least two, so that
        two requests share the time instead of one waiting for the other."""
        threads = num_threads or max(2, num_usable_cores())
        # Each thread costs the tokenizer's memory: small work is short enough to take turns on one.
        self._small = ThreadPoolExecutor(1, thread_name_prefix="render-small")
        self._long = ThreadPoolExecutor(threads, thread_name_prefix="render-long")
        self._large = ThreadPoolExecutor(threads, thread_name_prefix="render-large")

    async def run(
        self, num_bytes: int, work: Callable[[*Ts], T], *args: *Ts, deadline: float | None = None
    ) -> T:
        """work(*args). num_bytes: the size of what it works on. It may be restarted on a thread: until it
        looks at the clock for the last time it must not have changed anything.

        Where the caller is cancelled, or the deadline passes (on time.monotonic), work in a queue is not
        begun, and work on a thread ends when it looks at the clock next. Raises ServiceError (DEADLINE).
        """
        call = partial(work, *args)
        if num_bytes <= _SMALL_BYTES:
            try:
                if num_bytes <= _INLINE_BYTES:
                    return _run_within(_INLINE_SECONDS, call)
                return await _run_on(self._small, partial(_run_within, _SMALL_SECONDS, call), deadline)
            except _TakesLongerError:
                pass
        if num_bytes <= _LONG_BYTES:
            return await _run_on(self._long, call, deadline)
        return await _run_on(self._large, call, deadline, in_own_thread=True)

    async def run_step(self, num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One step of a stream, begun once: at once if it is as small as most are, else on a thread."""
        if num_bytes <= _INLINE_STEP_BYTES:
            return work(*args, **kwargs)
        executor = self._small if num_bytes <= _SMALL_BYTES else self._long
        return await _run_on(executor, partial(work, *args, **kwargs))


def _run_within(seconds: float, work: Callable[[], T]) -> T:
    with time_limit(seconds, _TakesLongerError()):
        return work()


async def _run_on(
    executor: Executor, work: Callable[[], T], deadline: float | None = None, *, in_own_thread: bool = False
) -> T:
    abandoned = Event()

    def run() -> T:
        with ExitStack() as limits:
            limits.enter_context(until_abandoned(abandoned))
            if deadline is not None:
                error = ServiceError(Reason.DEADLINE, "the deadline passed before the prompt was rendered")
                limits.enter_context(time_limit(deadline - monotonic(), error))
            check_clock()
            return work()

    job = partial(_run_in_own_thread, run) if in_own_thread else run
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, job)
    except asyncio.CancelledError:
        abandoned.set()
        raise


def _run_in_own_thread(work: Callable[[], T]) -> T:
    """The memory that a tokenizer needs for a text, it keeps for the thread as long as that lives."""
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="render-own") as own:
            return own.submit(work).result()
    finally:
        timer = Timer(_THREAD_END_SECONDS, give_back_memory)
        timer.daemon = True
        timer.start()
