"""Where work runs: the small is not kept waiting by the large, and nothing long keeps the event loop."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from time import monotonic

import pytest

from services.render.compute_pool import ComputePool
from services.render.time_limit import check_clock

LARGE = 1_000_000


@pytest.fixture
def pool() -> ComputePool:
    return ComputePool(num_threads=1)


@pytest.fixture
async def busy(pool: ComputePool) -> AsyncIterator[None]:
    """Large work runs and waits, until the test is over."""
    release = threading.Event()
    large = [asyncio.ensure_future(pool.run(LARGE, release.wait, 10)) for _ in range(5)]
    await asyncio.sleep(0.01)  # they are all submitted now
    yield
    assert not any(work.done() for work in large)
    release.set()
    assert all(await asyncio.gather(*large))


@pytest.mark.parametrize("num_bytes", [10, 5000, 16 * 1024])
@pytest.mark.usefixtures("busy")
async def test_large_work_on_every_thread_does_not_delay_small_work(
    pool: ComputePool, num_bytes: int
) -> None:
    async with asyncio.timeout(2):
        assert await pool.run(num_bytes, lambda: "small") == "small"
        assert await pool.run_step(num_bytes, lambda: "small") == "small"


async def test_the_smallest_work_runs_at_once_and_all_other_on_a_thread(pool: ComputePool) -> None:
    here = threading.get_ident()
    for run, at_once, on_thread in ((pool.run, 4096, 4097), (pool.run_step, 512, 513)):
        assert await run(at_once, threading.get_ident) == here
        assert await run(on_thread, threading.get_ident) != here
        assert await run(LARGE, threading.get_ident) != here


async def test_a_step_is_never_begun_twice(pool: ComputePool) -> None:
    def slow() -> None:
        time.sleep(0.03)
        check_clock()

    await pool.run_step(10, slow)


async def test_small_work_that_takes_long_moves_to_a_thread(pool: ComputePool) -> None:
    threads: list[int] = []

    def loop() -> str:
        threads.append(threading.get_ident())
        end = monotonic() + 0.3
        while monotonic() < end:
            check_clock()
        return "done"

    longest = 0.0
    work = asyncio.ensure_future(pool.run(10, loop))
    while not work.done():
        start = monotonic()
        await asyncio.sleep(0.001)
        longest = max(longest, monotonic() - start)
    assert await work == "done"
    here, there = threads
    assert here == threading.get_ident() != there
    assert longest < 0.2


async def test_errors_come_back(pool: ComputePool) -> None:
    def fail(message: str) -> None:
        raise ValueError(message)

    for num_bytes in (10, LARGE):
        with pytest.raises(ValueError, match="as it is"):
            await pool.run(num_bytes, fail, "as it is")


async def test_small_work_that_loops_on_its_thread_lets_other_small_work_through(pool: ComputePool) -> None:
    def loop(until: float) -> str:
        while monotonic() < until:
            check_clock()
        return "done"

    looping = asyncio.ensure_future(pool.run(5000, loop, monotonic() + 1))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(0.8):
        assert await pool.run_step(6000, lambda: "small") == "small"
    assert not looping.done()
    assert await looping == "done"
