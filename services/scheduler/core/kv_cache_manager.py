"""Block tables: which blocks hold a sequence's KV on one worker."""

from services.scheduler.core.block_pool import BlockPool
from services.scheduler.core.prefix_cache import CachedBlock, HashBlock, PrefixCache, hash_block
from services.scheduler.core.request import Sequence


class KVCacheManager:
    """Owns the block pool and the prefix cache of one worker."""

    def __init__(
        self, num_blocks: int, block_size: int, model_identity: str, hash_function: HashBlock = hash_block
    ) -> None:
        self.block_size = block_size
        self.prefix_cache = PrefixCache(block_size, model_identity, hash_function)
        self.block_pool = BlockPool(num_blocks, on_evict=self.prefix_cache.evict)
        # Per live sequence: how many of its blocks are in the prefix cache, and the last of them.
        self._inserted: dict[Sequence, tuple[int, CachedBlock | None]] = {}
        # The last lookup and what it found: a sequence that does not fit is looked up again at each step.
        self._last_match: tuple[Sequence | None, list[CachedBlock]] = (None, [])

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def get_computed_blocks(self, sequence: Sequence) -> list[CachedBlock]:
        """Cached blocks that hold the start of the sequence; at least one token stays to be computed.

        A request for prompt log-probabilities reuses nothing: every position must be computed.
        """
        if sequence.request.prompt_logprobs is not None:
            return []
        asked_for, earlier = self._last_match
        blocks = self.prefix_cache.match_prefix(
            sequence.token_ids(0, sequence.num_tokens - 1),
            sequence.request.cache_salt,
            earlier if asked_for is sequence else (),
        )
        self._last_match = (sequence, blocks)
        return blocks

    def can_hold(self, sequence: Sequence) -> bool:
        """Whether the whole cache is large enough for it; the last token of an output is never computed."""
        request = sequence.request
        num_tokens = len(request.prompt_token_ids) + request.max_tokens - 1
        return self.num_blocks_for(num_tokens) <= self.block_pool.num_live + self.block_pool.num_available

    def can_admit(self, sequence: Sequence, computed_blocks: list[CachedBlock]) -> bool:
        """Whether all of its present tokens fit beside what is live, with one block to spare."""
        num_revived = sum(self.block_pool.is_cached(block.block_id) for block in computed_blocks)
        num_new = self.num_blocks_for(sequence.num_tokens) - len(computed_blocks)
        num_spare = 1 if self.block_pool.num_live else 0
        return num_new + num_revived + num_spare <= self.block_pool.num_available

    def adopt(self, sequence: Sequence, computed_blocks: list[CachedBlock]) -> None:
        """Starts a block table with cached blocks."""
        sequence.block_ids = [block.block_id for block in computed_blocks]
        for block_id in sequence.block_ids:
            self.block_pool.share(block_id)
        sequence.num_computed_tokens = len(computed_blocks) * self.block_size
        self._inserted[sequence] = (len(computed_blocks), computed_blocks[-1] if computed_blocks else None)

    def allocate_slots(self, sequence: Sequence, num_tokens: int) -> bool:
        """Extends the block table to hold `num_tokens`; False, and nothing changed, if blocks run out."""
        num_new = self.num_blocks_for(num_tokens) - len(sequence.block_ids)
        if num_new > self.block_pool.num_available:
            return False
        sequence.block_ids.extend(self.block_pool.allocate() for _ in range(num_new))
        return True

    def cache_full_blocks(self, sequence: Sequence) -> None:
        """Inserts the blocks that a finished step filled into the prefix cache."""
        num_inserted, parent = self._inserted[sequence]
        for index in range(num_inserted, sequence.num_computed_tokens // self.block_size):
            if index > 0 and parent is None:
                return  # the chain is broken by a block that could not be inserted
            tokens = sequence.token_ids(index * self.block_size, (index + 1) * self.block_size)
            salt = sequence.request.cache_salt
            parent = self.prefix_cache.insert(sequence.block_ids[index], parent, tokens, salt)
            self._inserted[sequence] = (index + 1, parent)

    def free(self, sequence: Sequence) -> None:
        """Gives the blocks back; those in the prefix cache stay cached. The last are released first, so that
        the start of a prefix, which more requests share, is reclaimed last."""
        for block_id in reversed(sequence.block_ids):
            self.block_pool.release(block_id, keep=self.prefix_cache.get(block_id) is not None)
        sequence.block_ids = []
        sequence.num_computed_tokens = 0
        self._inserted.pop(sequence, None)

    def check_integrity(self, live: list[Sequence]) -> None:
        """References equal the block tables of the live sequences; the prefix cache knows what they hold."""
        self.block_pool.check_integrity()
        self.prefix_cache.check_integrity()
        counts: dict[int, int] = {}
        for sequence in live:
            assert len(sequence.block_ids) >= self.num_blocks_for(sequence.num_computed_tokens)
            for index, block_id in enumerate(sequence.block_ids):
                counts[block_id] = counts.get(block_id, 0) + 1
                known = self.prefix_cache.get(block_id)
                if known is not None:
                    start = index * self.block_size
                    assert list(known.token_ids) == sequence.token_ids(start, start + self.block_size)
        assert len(counts) == self.block_pool.num_live, "live blocks that no sequence holds"
        assert all(self.block_pool.num_references(block_id) == count for block_id, count in counts.items())
