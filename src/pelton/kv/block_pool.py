"""The one pool of blocks that all groups draw from, and the prefix map over it."""

from collections.abc import Iterable
from itertools import islice

from pelton.kv.block import NULL_BLOCK_ID, Block, FreeBlockQueue
from pelton.kv.block_key import BlockKey


class BlockPool:
    """Every block is the null block, referenced, or free; free blocks may still be findable.

    A findable block leaves the prefix map only when it is popped for reuse, so the cache evicts the least
    recently used prefix, its end first. Blocks come into being when they are first needed: there may be 100,000, and
    a short life needs few.
    """

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        self.num_blocks = num_blocks
        self.blocks = [Block(NULL_BLOCK_ID)]
        """By id; those with higher ids have never been used, and are free."""
        self.null_block = self.blocks[NULL_BLOCK_ID]
        self._free = FreeBlockQueue()
        self.prefix_maps: list[dict[BlockKey, Block]] = [{} for _ in range(num_groups)]
        """Per group: what is findable, free or not."""

    @property
    def num_usable(self) -> int:
        """Blocks that requests can hold: all but the null block."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        return self._free.size + self.num_unused

    @property
    def num_unused(self) -> int:
        """Free blocks that have never been used."""
        return self.num_blocks - len(self.blocks)

    def allocate(self) -> Block:
        """Take a block for new content. The caller has checked `num_free`."""
        first = self._free.first
        if self.num_unused and (first is None or first.key is not None):
            block = self.make_block()
        else:
            block = self._free.pop_first()
        if block.key is not None:
            self.evict_block(block)
        block.ref_count = 1
        return block

    def make_block(self) -> Block:
        """The next of those that have never been used."""
        block = Block(len(self.blocks))
        self.blocks.append(block)
        return block

    def touch(self, block: Block) -> None:
        """Hold a block for one more request table."""
        if block.ref_count == 0:
            self._free.remove(block)
        block.ref_count += 1

    def release(self, blocks: Iterable[Block]) -> None:
        """Drop one reference of each block; those that nobody holds become free.

        Among findable blocks, those given first are reused first. Blocks that nobody can find hold nothing of
        value and are reused before any of them; so are those that have never been used.
        """
        for block in blocks:
            block.ref_count -= 1
            if block.ref_count == 0:
                if block.key is None:
                    self._free.prepend(block)
                else:
                    self._free.append(block)

    def cache_block(self, block: Block, key: BlockKey, group: int) -> Block:
        """Make `block` findable under `key`, unless another block is. Returns the one that is."""
        found = self.prefix_maps[group].setdefault(key, block)
        if found is block:
            block.key, block.group = key, group
        return found

    def evict_block(self, block: Block) -> None:
        """Take `block` out of the prefix map."""
        if block.key is not None:
            del self.prefix_maps[block.group][block.key]
            block.key, block.group = None, -1

    def evict_all(self) -> None:
        """Empty the prefix map; running requests keep their blocks."""
        for prefix_map in self.prefix_maps:
            for block in prefix_map.values():
                block.key, block.group = None, -1
            prefix_map.clear()

    def integrity_problems(self, holders: Iterable[Block]) -> list[str]:
        """Compare the pool with `holders`: every reference that request tables and releases hold.

        The pool equation: free + referenced + null == total.
        """
        problems = []
        held: dict[int, int] = {}
        for block in holders:
            if block is not self.null_block:
                held[block.id] = held.get(block.id, 0) + 1
        free = {block.id for block in islice(self._free, len(self.blocks))}  # a damaged queue may be a circle
        if len(free) != self._free.size:
            problems.append(f"free queue counts {self._free.size} blocks and has {len(free)}")
        if NULL_BLOCK_ID in free or self.null_block.ref_count or self.null_block.key is not None:
            problems.append("the null block is free, referenced or findable")
        for block in self.blocks[1:]:
            if block.ref_count != held.get(block.id, 0):
                problems.append(f"{block} is held {held.get(block.id, 0)} times")
            if (block.ref_count == 0) != (block.id in free):
                problems.append(f"{block} is {'free' if block.id in free else 'not free'}")
            if block.key is not None and self.prefix_maps[block.group].get(block.key) is not block:
                problems.append(f"{block} has a key under which it is not found")
        num_findable = sum(block.key is not None for block in self.blocks)
        num_mapped = sum(len(prefix_map) for prefix_map in self.prefix_maps)
        if num_findable != num_mapped:
            problems.append(f"{num_mapped} entries in the prefix map, {num_findable} findable blocks")
        return problems
