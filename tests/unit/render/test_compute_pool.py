"""Threads: the small is not kept waiting by the large."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from services.render.compute_pool import ComputePool

LARGE = 1_000_000


@pytest.fixture
def pool() -> Iterator[ComputePool]:
    pool = ComputePool(num_threads=1)
    yield pool
    pool.close()


async def test_large_work_on_every_thread_leaves_small_work_its_own(pool: ComputePool) -> None:
    release = threading.Event()
    large = [asyncio.ensure_future(pool.run(LARGE, release.wait, 10)) for _ in range(5)]
    await asyncio.sleep(0.01)  # they are all submitted now
    async with asyncio.timeout(2):
        assert await pool.run(10, lambda: "small") == "small"
    assert not any(work.done() for work in large)
    release.set()
    assert all(await asyncio.gather(*large))


async def test_a_small_step_runs_at_once_and_a_large_one_on_a_thread(pool: ComputePool) -> None:
    here = threading.get_ident()
    assert await pool.run_step(10, threading.get_ident) == here
    assert await pool.run_step(LARGE, threading.get_ident) != here


async def test_errors_come_back(pool: ComputePool) -> None:
    def fail(message: str) -> None:
        raise ValueError(message)

    with pytest.raises(ValueError, match="as it is"):
        await pool.run(10, fail, "as it is")
