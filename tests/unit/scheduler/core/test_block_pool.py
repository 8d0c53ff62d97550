import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.block_pool import NULL_BLOCK_ID, BlockPool


def make_pool(num_blocks: int) -> tuple[BlockPool, list[int]]:
    evicted: list[int] = []
    return BlockPool(num_blocks, evicted.append), evicted


def test_a_pool_of_the_null_block_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        make_pool(1)


def test_the_null_block_is_never_handed_out() -> None:
    pool, _ = make_pool(4)
    assert NULL_BLOCK_ID not in {pool.allocate() for _ in range(3)}
    assert pool.num_available == 0


def test_free_blocks_go_first_then_the_least_recently_released_cached_ones() -> None:
    pool, evicted = make_pool(5)
    first, second, third, _ = (pool.allocate() for _ in range(4))
    for block_id in (second, first):
        pool.release(block_id, keep=True)
    pool.release(third, keep=False)
    assert [pool.allocate() for _ in range(3)] == [third, second, first]
    assert evicted == [second, first]


def test_a_shared_block_stays_live_until_its_last_reference_goes() -> None:
    pool, _ = make_pool(3)
    block_id = pool.allocate()
    pool.share(block_id)
    pool.release(block_id, keep=True)
    assert (pool.num_live, pool.num_cached) == (1, 0)
    pool.release(block_id, keep=True)
    assert (pool.num_live, pool.num_cached) == (0, 1)


def test_a_cached_block_that_is_shared_is_live_again_and_not_evicted() -> None:
    pool, evicted = make_pool(3)
    block_id = pool.allocate()
    pool.release(block_id, keep=True)
    pool.share(block_id)
    assert not pool.is_cached(block_id)
    assert pool.num_references(block_id) == 1
    assert pool.allocate() != block_id
    assert evicted == []


@given(st.integers(2, 8), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7), st.booleans())))
def test_live_cached_and_free_blocks_always_add_up(
    num_blocks: int, moves: list[tuple[int, int, bool]]
) -> None:
    pool, evicted = make_pool(num_blocks)
    held: list[int] = []
    for move, choice, keep in moves:
        if move == 0 and pool.num_available:
            held.append(pool.allocate())
            assert held.count(held[-1]) == 1
        elif move == 1 and held:
            held.append(held[choice % len(held)])
            pool.share(held[-1])
        elif move == 2 and held:
            pool.release(held.pop(choice % len(held)), keep=keep)
        pool.check_integrity()
        assert pool.num_live == len(set(held))
        assert pool.num_live + pool.num_cached + pool.num_free == num_blocks - 1
    assert NULL_BLOCK_ID not in evicted
