import pytest

from services.scheduler.core.kv_cache_manager import KVCacheManager
from services.scheduler.core.request import Request, Sequence

BLOCK_SIZE = 4


def make_manager(num_blocks: int) -> KVCacheManager:
    return KVCacheManager(num_blocks, BLOCK_SIZE, "model")


def make_sequence(num_tokens: int, max_tokens: int = 1, prompt_logprobs: int | None = None) -> Sequence:
    prompt = tuple(range(num_tokens))
    return Request("", "", prompt, max_tokens, (0,), 0.0, prompt_logprobs=prompt_logprobs).sequences[0]


def compute(manager: KVCacheManager, sequence: Sequence) -> None:
    """As a step over all of its tokens."""
    manager.adopt(sequence, manager.get_computed_blocks(sequence))
    assert manager.allocate_slots(sequence, sequence.num_tokens)
    sequence.num_computed_tokens = sequence.num_tokens
    manager.cache_full_blocks(sequence)
    manager.check_integrity([sequence])


@pytest.mark.parametrize(("num_tokens", "num_cached_blocks"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_at_least_one_token_of_a_known_prompt_stays_to_be_computed(
    num_tokens: int, num_cached_blocks: int
) -> None:
    manager = make_manager(8)
    compute(manager, sequence := make_sequence(num_tokens))
    manager.free(sequence)
    assert len(manager.get_computed_blocks(make_sequence(num_tokens))) == num_cached_blocks


def test_nothing_is_found_before_its_kv_is_written() -> None:
    manager = make_manager(8)
    sequence = make_sequence(9)
    manager.adopt(sequence, [])
    manager.allocate_slots(sequence, 9)
    sequence.num_computed_tokens = 7
    manager.cache_full_blocks(sequence)
    assert len(manager.get_computed_blocks(make_sequence(9))) == 1


def test_a_request_for_prompt_logprobs_reads_nothing() -> None:
    manager = make_manager(8)
    compute(manager, make_sequence(9))
    assert manager.get_computed_blocks(make_sequence(9, prompt_logprobs=0)) == []


def test_when_blocks_run_out_nothing_changes() -> None:
    manager = make_manager(3)
    sequence = make_sequence(4)
    manager.adopt(sequence, [])
    assert not manager.allocate_slots(sequence, 3 * BLOCK_SIZE)
    assert (sequence.block_ids, manager.block_pool.num_available) == ([], 2)


def test_a_lone_sequence_may_fill_the_pool_but_beside_others_one_block_is_spared() -> None:
    manager = make_manager(4)
    assert manager.can_admit(make_sequence(3 * BLOCK_SIZE), [])
    compute(manager, make_sequence(1))
    assert manager.can_admit(make_sequence(BLOCK_SIZE), [])
    assert not manager.can_admit(make_sequence(2 * BLOCK_SIZE), [])


def test_cached_blocks_that_come_to_life_again_are_no_room_for_others() -> None:
    manager = make_manager(4)
    compute(manager, sequence := make_sequence(9))
    manager.free(sequence)
    compute(manager, Request("", "", (99,), 1, (0,), 0.0).sequences[0])
    again = make_sequence(9)
    assert len(blocks := manager.get_computed_blocks(again)) == 2
    assert not manager.can_admit(again, blocks)


@pytest.mark.parametrize(("max_tokens", "can_hold"), [(5, True), (6, False)])
def test_a_pool_holds_all_but_the_last_token_of_an_output(max_tokens: int, can_hold: bool) -> None:
    assert make_manager(3).can_hold(make_sequence(4, max_tokens)) is can_hold


def test_the_end_of_a_prefix_is_reclaimed_before_its_start() -> None:
    manager = make_manager(4)
    compute(manager, sequence := make_sequence(12))
    manager.free(sequence)
    manager.block_pool.allocate()
    assert len(manager.get_computed_blocks(make_sequence(13))) == 2
