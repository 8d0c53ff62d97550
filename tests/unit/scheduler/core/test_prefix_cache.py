from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.prefix_cache import CachedBlock, HashBlock, PrefixCache, hash_block, hash_root
from tests.unit.scheduler.core.cluster import constant_hash

A, B, C = (1, 2), (3, 4), (5, 6)


def make_chain(
    cache: PrefixCache, *tokens: tuple[int, ...], first_id: int = 1, salt: str = ""
) -> list[CachedBlock | None]:
    """Publishes blocks one after the other."""
    chain: list[CachedBlock | None] = []
    for block_id, token_ids in enumerate(tokens, first_id):
        chain.append(cache.insert(block_id, chain[-1] if chain else None, token_ids, salt))
        cache.check_integrity()
    return chain


def matched(cache: PrefixCache, *tokens: tuple[int, ...], salt: str = "") -> list[int]:
    return [block.block_id for block in cache.match_prefix([each for part in tokens for each in part], salt)]


def test_the_longest_known_prefix_of_whole_blocks_is_found() -> None:
    cache = PrefixCache(2, "model")
    make_chain(cache, A, B)
    assert matched(cache, A, B, C) == [1, 2]
    assert matched(cache, A, (3,)) == [1]
    assert matched(cache, A, C) == [1]
    assert matched(cache, B) == []


def test_equal_tokens_after_another_start_are_another_block() -> None:
    cache = PrefixCache(2, "model")
    make_chain(cache, A, B)
    assert matched(cache, C, B) == []


def test_a_block_is_shared_only_within_its_salt_and_its_model() -> None:
    cache = PrefixCache(2, "model")
    make_chain(cache, A, salt="mine")
    assert matched(cache, A, salt="mine") == [1]
    assert matched(cache, A) == matched(cache, A, salt="yours") == []
    assert hash_root("mine", "model") != hash_root("mine", "another")


def test_parts_of_a_hash_do_not_run_into_each_other() -> None:
    pieces = ["", "a", "aa", "aaa", "M", "aM"]
    assert len({hash_root(*pair) for pair in product(pieces, repeat=2)}) == len(pieces) ** 2
    assert hash_block(b"", [1]) != hash_block(b"\1\0\0\0", [])


def test_of_two_blocks_with_the_same_content_the_first_stays() -> None:
    cache = PrefixCache(2, "model")
    (first,) = make_chain(cache, A)
    assert make_chain(cache, A, first_id=7) == [first]
    assert cache.get(7) is None


def test_an_evicted_block_is_not_found_and_neither_is_what_follows_it() -> None:
    cache = PrefixCache(2, "model")
    make_chain(cache, A, B)
    cache.evict(1)
    assert matched(cache, A, B) == []


def test_what_follows_an_evicted_block_is_not_inserted() -> None:
    cache = PrefixCache(2, "model")
    (first,) = make_chain(cache, A)
    cache.evict(1)
    assert cache.insert(2, first, B, "") is None
    assert cache.get(2) is None


def test_a_chain_made_again_replaces_the_rest_of_the_old_one() -> None:
    cache = PrefixCache(2, "model")
    make_chain(cache, A, B)
    cache.evict(1)
    make_chain(cache, A, B, first_id=11)
    assert matched(cache, A, B) == [11, 12]
    assert cache.get(2) is None


def test_equal_hashes_mix_neither_tokens_nor_parents_nor_salts() -> None:
    cache = PrefixCache(2, "model", constant_hash)
    make_chain(cache, A)
    assert matched(cache, A, A) == [1]
    assert matched(cache, B) == matched(cache, A, salt="other") == []
    assert make_chain(cache, B, first_id=2) == make_chain(cache, A, first_id=3, salt="other") == [None]


def test_what_was_found_before_is_not_hashed_again() -> None:
    hashed: list[tuple[int, ...]] = []

    def hash_and_note(parent_hash: bytes, token_ids: Sequence[int]) -> bytes:
        hashed.append(tuple(token_ids))
        return hash_block(parent_hash, token_ids)

    cache = PrefixCache(2, "model", hash_and_note)
    make_chain(cache, A, B)
    earlier = cache.match_prefix([*A, *B, *C], "")
    hashed.clear()
    assert cache.match_prefix([*A, *B, *C], "", earlier) == earlier
    assert hashed == [C]


@pytest.mark.parametrize("hash_function", [hash_block, constant_hash])
@given(data=st.data())
def test_what_was_found_before_changes_nothing(hash_function: HashBlock, data: st.DataObject) -> None:
    cache = PrefixCache(1, "model", hash_function)
    tokens = (1, 2, 1, 1)
    earlier: list[CachedBlock] = []
    for block_id in range(1, data.draw(st.integers(2, 20))):
        if data.draw(st.booleans()):
            cache.evict(data.draw(st.integers(1, block_id)))
        else:
            length = data.draw(st.integers(1, len(tokens)))
            chain = cache.match_prefix(tokens[: length - 1], "")
            if len(chain) == length - 1:
                cache.insert(block_id, chain[-1] if chain else None, tokens[length - 1 : length], "")
        if data.draw(st.booleans()):
            found = cache.match_prefix(tokens, "", earlier)
            assert found == cache.match_prefix(tokens, "")
            earlier = found
