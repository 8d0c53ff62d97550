"""Finds full blocks by their tokens and those of all blocks before them.

A block's hash is SHA-256 over its parent's hash and its tokens; a first block's parent is a hash over the
cache salt and the model's identity. Each part is typed and length-prefixed, so that different inputs are
different bytes. On a hit the tokens and the parent are compared, so that a collision mixes no contents.
A block is inserted only after its KV is written, and evicted when it is handed out again.
"""

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

HashBlock = Callable[[bytes, Sequence[int]], bytes]


@dataclass(frozen=True, eq=False)
class CachedBlock:
    """A block in the cache. `parent` is the block before it, None for a first block."""

    block_id: int
    block_hash: bytes
    root: bytes
    parent: "CachedBlock | None" = field(repr=False)
    token_ids: tuple[int, ...]

    def holds(self, root: bytes, parent: "CachedBlock | None", token_ids: tuple[int, ...]) -> bool:
        """Whether this is the block with those tokens after that parent."""
        return self.token_ids == token_ids and self.parent is parent and self.root == root


def hash_block(parent_hash: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of a full block that follows the block with `parent_hash`."""
    return _hash((b"P", parent_hash), (b"T", struct.pack(f"<{len(token_ids)}I", *token_ids)))


def hash_root(cache_salt: str, model_identity: str) -> bytes:
    """Stands for the parent of a first block: who may share it, and on which model."""
    return _hash((b"S", cache_salt.encode()), (b"M", model_identity.encode()))


def _hash(*parts: tuple[bytes, bytes]) -> bytes:
    digest = hashlib.sha256()
    for tag, payload in parts:
        digest.update(tag + struct.pack("<Q", len(payload)) + payload)
    return digest.digest()


class PrefixCache:
    """The blocks of one worker, by hash; a bijection."""

    def __init__(self, block_size: int, model_identity: str, hash_function: HashBlock = hash_block) -> None:
        """`hash_function` is replaced in tests that force collisions."""
        self._block_size = block_size
        self._model_identity = model_identity
        self._hash = hash_function
        self._by_hash: dict[bytes, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}

    def match_prefix(
        self, token_ids: Sequence[int], cache_salt: str, earlier: Sequence[CachedBlock] = ()
    ) -> list[CachedBlock]:
        """The blocks that hold the longest known prefix of whole blocks.

        earlier: what was found for these tokens, or for fewer of them, before; it is not hashed again.
        """
        root = hash_root(cache_salt, self._model_identity)
        blocks = list(takewhile(self._contains, earlier))
        parent = blocks[-1] if blocks else None
        for start in range(
            len(blocks) * self._block_size, len(token_ids) - self._block_size + 1, self._block_size
        ):
            tokens = tuple(token_ids[start : start + self._block_size])
            found = self._by_hash.get(self._hash(parent.block_hash if parent else root, tokens))
            if found is None or not found.holds(root, parent, tokens):
                break
            blocks.append(found)
            parent = found
        return blocks

    def insert(
        self, block_id: int, parent: CachedBlock | None, token_ids: Sequence[int], cache_salt: str
    ) -> CachedBlock | None:
        """Adds a full block whose KV is written; returns the parent of the next one.

        If another block with the same content is there, it stays and is returned. None: other content has the
        same hash, so neither this block nor what follows it can be inserted.
        """
        root = hash_root(cache_salt, self._model_identity)
        tokens = tuple(token_ids)
        block_hash = self._hash(parent.block_hash if parent else root, tokens)
        found = self._by_hash.get(block_hash)
        if found is not None and found.parent is not None and not self._contains(found.parent):
            self.evict(found.block_id)  # unreachable: its parent was evicted
            found = None
        if found is not None:
            return found if found.holds(root, parent, tokens) else None
        if parent is not None and not self._contains(parent):
            return None  # it would be unreachable
        block = CachedBlock(block_id, block_hash, root, parent, tokens)
        self._by_hash[block_hash] = self._by_block[block_id] = block
        return block

    def evict(self, block_id: int) -> None:
        """Forgets a block that is handed out again."""
        block = self._by_block.pop(block_id, None)
        if block is not None:
            del self._by_hash[block.block_hash]

    def get(self, block_id: int) -> CachedBlock | None:
        """What is known to be in the block; None if it cannot be found by its content."""
        return self._by_block.get(block_id)

    def check_integrity(self) -> None:
        assert len(self._by_hash) == len(self._by_block)
        assert all(self._by_block[block.block_id] is block for block in self._by_hash.values())

    def _contains(self, block: CachedBlock) -> bool:
        return self._by_block.get(block.block_id) is block
