"""Blocks, and the queue of those that nobody holds."""

from collections.abc import Iterator

from pelton.kv.block_key import BlockKey

NULL_BLOCK_ID = 0
"""The null block stands for padding and for positions that slid out of a window. It holds no data, is never
allocated and never freed."""


class Block:
    """A place for the keys and values of `block_size` tokens, for the layers of one group."""

    __slots__ = ("group", "id", "key", "next", "previous", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.id = block_id
        self.ref_count = 0
        """Request tables (and pending releases) that hold the block."""
        self.key: BlockKey | None = None
        """What the block is findable by in the prefix map; None if it is not in the map."""
        self.group = -1
        """The group whose prefix map has the block."""
        self.previous: Block | None = None
        self.next: Block | None = None

    def __repr__(self) -> str:
        return f"Block({self.id}, ref_count={self.ref_count}, cached={self.key is not None})"


class FreeBlockQueue:
    """Free blocks in the order of their reuse: a doubly linked list through the blocks themselves.

    A prefix hit takes a block out of the middle, so removal must be O(1).
    """

    __slots__ = ("_head", "_tail", "size")

    def __init__(self) -> None:
        # Sentinels: no operation has to treat the ends as special.
        self._head = Block(-1)
        self._tail = Block(-1)
        self._head.next = self._tail
        self._tail.previous = self._head
        self.size = 0

    @property
    def first(self) -> Block | None:
        """The block that is reused first; None if there is none."""
        block = self._head.next
        return None if block is self._tail else block

    def pop_first(self) -> Block:
        """Take the block that has been free the longest. The caller has checked that there is one."""
        block = self._head.next
        assert block is not None
        assert block is not self._tail, "no free block left"
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        before, after = block.previous, block.next
        assert before is not None
        assert after is not None
        before.next, after.previous = after, before
        block.previous = block.next = None
        self.size -= 1

    def append(self, block: Block) -> None:
        """Put `block` where it is reused last."""
        before = self._tail.previous
        assert before is not None
        self._insert(before, block, self._tail)

    def prepend(self, block: Block) -> None:
        """Put `block` where it is reused first."""
        after = self._head.next
        assert after is not None
        self._insert(self._head, block, after)

    def _insert(self, before: Block, block: Block, after: Block) -> None:
        assert block.next is None, f"{block} is in the queue already"
        before.next = after.previous = block
        block.previous, block.next = before, after
        self.size += 1

    def __iter__(self) -> Iterator[Block]:
        block = self._head.next
        while block is not self._tail:
            assert block is not None
            yield block
            block = block.next
