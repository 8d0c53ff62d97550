"""Where work runs: the small is not kept waiting by the large, and nothing long keeps the event loop."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from time import monotonic

import pytest

from services.render.compute_pool import ComputePool
from services.render.time_limit import AbandonedError, check_clock, time_limit
from shared.errors import Reason, ServiceError
from tests.support.render_models import DEEPSEEK_TOKENIZER

LONG = 1_000_000
LARGE = 2_000_000


@pytest.fixture
def pool() -> ComputePool:
    return ComputePool(num_threads=1)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 it changes on another thread
            await asyncio.sleep(0.001)


@pytest.fixture
async def busy(pool: ComputePool) -> AsyncIterator[None]:
    """Long and large work runs and waits, until the test is over."""
    release = threading.Event()
    waiting = [asyncio.ensure_future(pool.run(size, release.wait, 60)) for size in [LONG, LARGE] * 5]
    await asyncio.sleep(0.01)  # they are all submitted now
    yield
    assert not any(work.done() for work in waiting)
    release.set()
    assert all(await asyncio.gather(*waiting))


@pytest.mark.parametrize("num_bytes", [10, 5000, 16 * 1024])
@pytest.mark.usefixtures("busy")
async def test_long_work_on_every_thread_does_not_delay_small_work(pool: ComputePool, num_bytes: int) -> None:
    async with asyncio.timeout(30):
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
    released = threading.Event()

    def loop() -> str:
        threads.append(threading.get_ident())
        while not released.is_set():
            check_clock()
        return "done"

    work = asyncio.ensure_future(pool.run(10, loop))
    await until(lambda: len(threads) == 2)  # the event loop goes on, although the work does not end
    released.set()
    assert await work == "done"
    here, there = threads
    assert here == threading.get_ident() != there


async def test_errors_come_back(pool: ComputePool) -> None:
    def fail(message: str) -> None:
        raise ValueError(message)

    for num_bytes in (10, LARGE):
        with pytest.raises(ValueError, match="as it is"):
            await pool.run(num_bytes, fail, "as it is")


async def test_small_work_that_loops_on_its_thread_lets_other_small_work_through(pool: ComputePool) -> None:
    released = threading.Event()

    def loop() -> str:
        while not released.is_set():
            check_clock()
        return "done"

    looping = asyncio.ensure_future(pool.run(5000, loop))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(30):
        assert await pool.run_step(6000, lambda: "small") == "small"
    assert not looping.done()
    released.set()
    assert await looping == "done"


async def test_long_work_does_not_wait_for_large_work(pool: ComputePool) -> None:
    release = threading.Event()
    large = asyncio.ensure_future(pool.run(LARGE, release.wait, 60))
    async with asyncio.timeout(30):
        assert await pool.run(LONG, lambda: "long") == "long"
    assert not large.done()
    release.set()
    assert await large


@pytest.mark.parametrize("num_bytes", [LONG, LARGE])
async def test_two_long_requests_share_the_time(num_bytes: int) -> None:
    both_run = threading.Barrier(2, timeout=30)
    pool = ComputePool()
    await asyncio.gather(*(pool.run(num_bytes, both_run.wait) for _ in range(2)))


async def test_large_work_runs_in_a_thread_that_ends_with_it(pool: ComputePool) -> None:
    threads = [await pool.run(size, threading.current_thread) for size in (LONG, LARGE)]
    for thread in threads[1:]:
        thread.join(30)
    assert [thread.is_alive() for thread in threads] == [True, False]


@pytest.mark.parametrize("num_bytes", [10, 5000, LONG, LARGE])
async def test_work_whose_deadline_has_passed_is_not_begun(pool: ComputePool, num_bytes: int) -> None:
    begun: list[int] = []
    if num_bytes > 4096:
        with pytest.raises(ServiceError) as caught:
            await pool.run(num_bytes, begun.append, 1, deadline=monotonic() - 1)
        assert (caught.value.reason, begun) == (Reason.DEADLINE, [])
    await pool.run(num_bytes, begun.append, 2, deadline=monotonic() + 60)
    assert begun == [2]


def loop_until(ended: list[BaseException], begun: threading.Event) -> None:
    """Looks at the clock, within a limit of its own as templates have it, until that raises an error."""
    begun.set()
    try:
        with time_limit(60, TimeoutError()):
            while True:
                check_clock()
    except BaseException as error:
        ended.append(error)
        raise


@pytest.mark.parametrize("num_bytes", [10, 5000, LONG, LARGE])
async def test_work_ends_once_its_deadline_passes(pool: ComputePool, num_bytes: int) -> None:
    ended: list[BaseException] = []
    with pytest.raises(ServiceError) as caught:
        await pool.run(num_bytes, loop_until, ended, threading.Event(), deadline=monotonic() + 0.3)
    assert caught.value.reason is Reason.DEADLINE
    assert ended[-1] is caught.value


@pytest.mark.parametrize("num_bytes", [5000, LONG, LARGE])
async def test_work_ends_once_its_caller_is_cancelled(pool: ComputePool, num_bytes: int) -> None:
    ended: list[BaseException] = []
    begun = threading.Event()
    work = asyncio.ensure_future(pool.run(num_bytes, loop_until, ended, begun))
    await until(begun.is_set)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await until(lambda: any(isinstance(error, AbandonedError) for error in ended))
    async with asyncio.timeout(30):
        assert await pool.run(num_bytes, lambda: "next") == "next"


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("num_bytes", [LONG, LARGE])
async def test_queued_work_of_a_cancelled_caller_never_begins(pool: ComputePool, num_bytes: int) -> None:
    begun: list[int] = []
    works = [asyncio.ensure_future(pool.run(num_bytes, begun.append, index)) for index in range(3)]
    await asyncio.sleep(0.01)
    for work in works:
        work.cancel()
    results = await asyncio.gather(*works, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert begun == []


def test_the_memory_of_a_very_long_text_is_given_back() -> None:
    """4 MB of spaces take 240 MB more while they are tokenized."""
    script = f"""
import asyncio, time
from pathlib import Path
from services.render.compute_pool import ComputePool
from services.render.tokenizer.fastokens import FastokensLibrary
from services.render.tokenizer.control_tokens import Piece

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

async def main():
    library, pool = FastokensLibrary(Path({str(DEEPSEEK_TOKENIZER / "tokenizer.json")!r})), ComputePool()
    before, most = resident(), 0
    for _ in range(2):
        text = " " * 4_000_000
        task = asyncio.ensure_future(pool.run(len(text), library.encode_pieces, [Piece(text, False)]))
        while not task.done():
            await asyncio.sleep(0.05)
            most = max(most, resident())
        del task, text
    end = time.monotonic() + 30
    while resident() > before + 80e6 and time.monotonic() < end:
        await asyncio.sleep(0.1)
    print((most - before) // 1_000_000, (resident() - before) // 1_000_000)

asyncio.run(main())
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    most, after = map(int, output.split())
    assert most > 120, "the text is long enough to show"
    assert after <= 80


async def test_queued_work_whose_deadline_passes_is_not_begun() -> None:
    """The deadline is looked at when its turn comes."""
    pool = ComputePool(num_threads=1)
    release = threading.Event()
    begun: list[int] = []
    running = asyncio.ensure_future(pool.run(LONG, release.wait, 60))
    queued = asyncio.ensure_future(pool.run(LONG, begun.append, 1, deadline=monotonic() + 0.05))
    await asyncio.sleep(0.1)
    release.set()
    with pytest.raises(ServiceError) as caught:
        await queued
    assert (caught.value.reason, begun, await running) == (Reason.DEADLINE, [], True)
