"""The free list and reference counts of one worker's blocks."""

from collections import OrderedDict, deque
from collections.abc import Callable

NULL_BLOCK_ID = 0


class BlockPool:
    """Every block but the null block is live (referenced), cached (kept for prefix reuse) or free.

    Cached blocks are reclaimed when nothing is free, the least recently released first. `on_evict` is called
    before such a block is handed out, so that it is no longer found by its old content.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        """`num_blocks` includes the null block."""
        if num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks}; allowed: at least 2 (one is the null block)")
        self._num_blocks = num_blocks
        self._on_evict = on_evict
        self._free: deque[int] = deque(range(1, num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._num_references: dict[int, int] = {}

    @property
    def num_live(self) -> int:
        return len(self._num_references)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: free and cached."""
        return self.num_free + self.num_cached

    def is_cached(self, block_id: int) -> bool:
        return block_id in self._cached

    def allocate(self) -> int:
        """A block with one reference. The caller has checked `num_available`."""
        if self._free:
            block_id = self._free.popleft()
        else:
            block_id, _ = self._cached.popitem(last=False)
            self._on_evict(block_id)
        self._num_references[block_id] = 1
        return block_id

    def share(self, block_id: int) -> None:
        """Adds a reference to a live or cached block."""
        self._cached.pop(block_id, None)
        self._num_references[block_id] = self._num_references.get(block_id, 0) + 1

    def release(self, block_id: int, *, keep: bool) -> None:
        """Drops a reference. Without any, the block is cached if `keep`, else free."""
        self._num_references[block_id] -= 1
        if self._num_references[block_id]:
            return
        del self._num_references[block_id]
        if keep:
            self._cached[block_id] = None
        else:
            self._free.append(block_id)

    def num_references(self, block_id: int) -> int:
        """Zero for a block that is not live."""
        return self._num_references.get(block_id, 0)

    def check_integrity(self) -> None:
        """Each block is in exactly one state."""
        states = [*self._free, *self._cached, *self._num_references]
        assert sorted(states) == list(range(1, self._num_blocks)), (
            "blocks lost, doubled or the null block used"
        )
        assert all(count > 0 for count in self._num_references.values()), "a live block without references"
