"""What the attention type of a group means for its blocks."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from pelton.core.kv_spec import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from pelton.kv.block import Block


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that `num_tokens` tokens fill, the last one perhaps in part."""
    return -(-num_tokens // block_size)


class GroupManager(ABC):
    """Which blocks of a request the layers of one group still read."""

    needs_every_block: ClassVar[bool] = False
    """Whether a prefix hit ends at the first block that is missing."""

    def __init__(self, spec: KVCacheSpec) -> None:
        self.block_size = spec.block_size

    @abstractmethod
    def first_needed_block(self, position: int) -> int:
        """Index of the first block that the query at `position` and later ones read."""

    @abstractmethod
    def longest_hit(self, blocks: Sequence[Block | None], limit: int) -> int:
        """Most leading blocks, at most `limit`, that a request can take as computed.

        `blocks[i]` is the findable block at index i, None if there is none.
        """

    @abstractmethod
    def most_blocks_held(self, num_tokens: int, longest_chunk: int) -> int:
        """Most blocks that a request of `num_tokens` tokens holds at a time, computed in chunks."""


class FullAttentionManager(GroupManager):
    """Every block is read until the request ends."""

    needs_every_block = True

    def first_needed_block(self, position: int) -> int:
        return 0

    def longest_hit(self, blocks: Sequence[Block | None], limit: int) -> int:
        for index in range(limit):
            if blocks[index] is None:
                return index
        return limit

    def most_blocks_held(self, num_tokens: int, longest_chunk: int) -> int:
        return blocks_for(num_tokens, self.block_size)


class SlidingWindowManager(GroupManager):
    """A query reads its own position and the `window - 1` before it; blocks before those slide out."""

    def __init__(self, spec: SlidingWindowSpec) -> None:
        super().__init__(spec)
        self.window = spec.window

    def first_needed_block(self, position: int) -> int:
        return max(0, position - self.window + 1) // self.block_size

    def longest_hit(self, blocks: Sequence[Block | None], limit: int) -> int:
        # blocks[index + 1 : end] are all there; stop when that covers the window of the query at the end.
        end = limit
        index = end - 1
        while index >= self.first_needed_block(end * self.block_size):
            if blocks[index] is None:
                end = index
            index -= 1
        return end

    def most_blocks_held(self, num_tokens: int, longest_chunk: int) -> int:
        # One more than the tokens need: the window may begin inside a block.
        in_view = blocks_for(self.window - 1 + longest_chunk, self.block_size) + 1
        return min(blocks_for(num_tokens, self.block_size), in_view)


def make_manager(spec: KVCacheSpec) -> GroupManager:
    if isinstance(spec, FullAttentionSpec):
        return FullAttentionManager(spec)
    if isinstance(spec, SlidingWindowSpec):
        return SlidingWindowManager(spec)
    raise ValueError(f"no KV-cache manager for {spec.kind} layers")
