"""The KV cache as the scheduler sees it: blocks for requests, over all groups and one pool."""

from collections.abc import Sequence
from dataclasses import dataclass

from pelton.core.kv_spec import KVCacheGroup
from pelton.core.request import Request
from pelton.kv.block import Block
from pelton.kv.block_key import HASH_FUNCTIONS, BlockKey, Extras, HashFunction, extend_keys
from pelton.kv.block_pool import BlockPool
from pelton.kv.managers import blocks_for, make_manager

BlockIds = list[list[int]]
"""Block ids, one list per group."""

NO_BLOCKS: BlockIds = []


@dataclass(slots=True)
class PrefixHit:
    """Blocks of the prefix cache that a request can take as computed."""

    tables: list[list[Block]]
    """Per group, the blocks from the first position on; the null block where the group needs none."""
    num_tokens: int


class _RequestBlocks:
    """What the coordinator keeps of one request."""

    __slots__ = (
        "extras",
        "keys",
        "last_step",
        "num_admitted_tokens",
        "num_blocks",
        "num_cached_blocks",
        "num_reserved",
        "num_slid",
        "tables",
    )

    def __init__(self, request: Request, num_groups: int) -> None:
        self.extras: Extras = ()
        if request.cache_salt is not None:
            self.extras = (("cache_salt", request.cache_salt),)
        self.keys: list[BlockKey] = []
        """Keys of the leading full blocks, as far as they were needed."""
        self.tables: list[list[Block]] = [[] for _ in range(num_groups)]
        self.num_blocks = 0
        """Length of every table."""
        self.num_slid = [0] * num_groups
        """Leading blocks of each table that slid out of its window."""
        self.num_cached_blocks = 0
        """Leading full blocks that have been entered in the prefix map (or found there)."""
        self.num_admitted_tokens = 0
        """Tokens that were known when it was admitted: blocks for them are reserved."""
        self.num_reserved = 0
        """Blocks that those tokens still need: admission of others leaves them alone."""
        self.last_step = 0
        """The last step that reads or writes its blocks."""


class KVCacheCoordinator:
    """Gives blocks to requests, takes them back, and finds prefixes.

    Steps overlap: a block goes back to the pool only when every step that reads it has ended, and a block
    entered in the prefix map by a step that fails is withdrawn.
    """

    def __init__(
        self,
        groups: Sequence[KVCacheGroup],
        num_blocks: int,
        *,
        longest_chunk: int,
        enable_prefix_caching: bool = True,
        hash_function: HashFunction = HASH_FUNCTIONS["sha256"],
    ) -> None:
        self.groups = groups
        self.block_size = groups[0].spec.block_size
        self._managers = [make_manager(group.spec) for group in groups]
        self._longest_chunk = longest_chunk
        self._enable_prefix_caching = enable_prefix_caching
        self._hash_function = hash_function
        self._num_blocks = num_blocks
        self.num_prefix_queries = 0
        """Tokens looked up in the prefix cache, at admissions."""
        self.num_prefix_hits = 0
        """Tokens found there."""
        self.rebuild()

    def rebuild(self) -> None:
        """Start over with an empty pool. The caller has dropped every request and step."""
        self.pool = BlockPool(self._num_blocks, len(self.groups))
        self._requests: dict[str, _RequestBlocks] = {}
        self._num_reserved = 0
        self._step = 0
        self._last_ended_step = 0
        self._pending_release: dict[int, list[Block]] = {}
        self._cached_by_step: dict[int, list[Block]] = {}

    # ---------------------------------------------------------------------------------------------- steps

    def begin_step(self, step_id: int) -> None:
        """Allocations from now on belong to this step."""
        self._step = step_id

    def end_step(self, step_id: int, *, failed: bool = False) -> None:
        """The step has been collected: release what waited for it; withdraw what it was to fill, if it failed.

        Steps end in the order they began.
        """
        self._last_ended_step = step_id
        if failed:
            self.withdraw(step_id)
        self._cached_by_step.pop(step_id, None)
        self.pool.release(self._pending_release.pop(step_id, ()))

    def withdraw(self, step_id: int) -> None:
        """Nobody may find what this step was to fill."""
        for block in self._cached_by_step.pop(step_id, ()):
            self.pool.evict_block(block)

    def withdraw_blocks(self, request: Request) -> None:
        """What this request has read or written is doubtful: nobody may find it any more."""
        for table in self._requests[request.id].tables:
            for block in table:
                self.pool.evict_block(block)

    @property
    def has_pending_release(self) -> bool:
        """Whether blocks will become free when a step in flight ends."""
        return bool(self._pending_release)

    # ------------------------------------------------------------------------------------------- requests

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Whether a request of `num_tokens` tokens fits into the empty pool."""
        return self._most_blocks_held(num_tokens) <= self.pool.num_usable

    def longest_fitting(self) -> int:
        """Most tokens that one request can hold in the empty pool; 2**31 if windows bound what it holds."""
        low, high = 0, 2**31
        if self.can_ever_fit(high):
            return high
        while high - low > 1:  # fits(low), not fits(high)
            middle = (low + high) // 2
            low, high = (middle, high) if self.can_ever_fit(middle) else (low, middle)
        return low

    def find_prefix(self, request: Request) -> PrefixHit:
        """The longest cached prefix of a request that holds no blocks; what it has to compute itself is left."""
        num_groups = len(self.groups)
        if not self._enable_prefix_caching:
            return PrefixHit([[] for _ in range(num_groups)], 0)
        candidates = self._look_up(request, request.max_cached_tokens // self.block_size)
        limit = len(candidates[0])
        agreed = -1
        while agreed != limit:  # a shorter hit may need blocks of another group that the longer one did not
            agreed = limit
            for manager, blocks in zip(self._managers, candidates, strict=True):
                limit = manager.longest_hit(blocks, limit)
        return self._make_hit(candidates, limit)

    def _look_up(self, request: Request, limit: int) -> list[list[Block | None]]:
        """Per group, the findable block at each of the first `limit` indices; ends where no longer hit can be."""
        state = self._state(request)
        candidates: list[list[Block | None]] = [[] for _ in self.groups]
        for index in range(limit):
            self._extend_keys(state, request, index + 1)
            for manager, prefix_map, blocks in zip(self._managers, self.pool.prefix_maps, candidates, strict=True):
                block = prefix_map.get(state.keys[index])
                blocks.append(block)
                if block is not None and block.key is not None:
                    # Go on with the chain in the map: keys then compare by identity, not block by block.
                    state.keys[index] = block.key
                    if index + 1 < len(state.keys):
                        state.keys[index + 1].parent = block.key
                elif manager.needs_every_block:
                    return [blocks[:index] for blocks in candidates]
        return candidates

    def _make_hit(self, candidates: list[list[Block | None]], num_blocks: int) -> PrefixHit:
        num_tokens = num_blocks * self.block_size
        tables = []
        for manager, blocks in zip(self._managers, candidates, strict=True):
            first = manager.first_needed_block(num_tokens)
            table = [self.pool.null_block] * first
            for block in blocks[first:num_blocks]:
                assert block is not None
                table.append(block)
            tables.append(table)
        return PrefixHit(tables, num_tokens)

    def admit(self, request: Request, hit: PrefixHit, num_new_tokens: int, *, headroom: int) -> BlockIds | None:
        """Give a request its cached prefix and blocks for `num_new_tokens` more tokens. All or nothing.

        None unless all its known tokens fit beside what running requests were promised, with `headroom` blocks
        per group to spare: a request that is let in makes progress before it can be preempted.
        """
        shared = [block for table in hit.tables for block in table if block is not self.pool.null_block]
        num_needed = self._most_blocks_held(len(request.token_ids)) - len(shared)
        num_available = self.pool.num_free - sum(block.ref_count == 0 for block in shared)
        num_spare = headroom * len(self.groups)
        if max(0, num_needed) + num_spare > num_available - self._num_reserved:
            return None
        state = self._state(request)
        for block in shared:
            self.pool.touch(block)
        num_hit_blocks = hit.num_tokens // self.block_size
        for group, table in enumerate(hit.tables):
            state.tables[group] = table
            state.num_slid[group] = self._managers[group].first_needed_block(hit.num_tokens)
        state.num_blocks = state.num_cached_blocks = num_hit_blocks
        state.num_admitted_tokens = len(request.token_ids)
        self.num_prefix_queries += len(request.token_ids)
        self.num_prefix_hits += hit.num_tokens
        block_ids = [[block.id for block in table] for table in hit.tables]
        new_ids = self._extend(state, request, hit.num_tokens + num_new_tokens)
        assert new_ids, "admission checked that the blocks are there"
        for group_ids, ids in zip(block_ids, new_ids, strict=True):
            group_ids.extend(ids)
        return block_ids

    def allocate_slots(self, request: Request, num_new_tokens: int) -> BlockIds | None:
        """Blocks for the next `num_new_tokens` tokens of a running request: all that is missing, or None.

        Returns the ids to append to its tables, `NO_BLOCKS` if it holds enough.
        """
        state = self._requests[request.id]
        end = request.num_computed_tokens + num_new_tokens
        if end <= state.num_blocks * self.block_size and (
            end < (state.num_cached_blocks + 1) * self.block_size or not self._enable_prefix_caching
        ):
            state.last_step = self._step
            return NO_BLOCKS
        self._slide(state, request.num_computed_tokens)
        return self._extend(state, request, end)

    def free(self, request: Request) -> None:
        """Take back all blocks of a request, the end of its prefix first. Unknown requests are no error."""
        state = self._requests.pop(request.id, None)
        if state is None:
            return
        self._num_reserved -= state.num_reserved
        blocks = [
            table[index]
            for index in range(state.num_blocks - 1, -1, -1)
            for table in state.tables
            if table[index] is not self.pool.null_block
        ]
        self._release(blocks, state.last_step)

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix; running requests are not affected."""
        self.pool.evict_all()

    # --------------------------------------------------------------------------------------------- health

    @property
    def usage(self) -> float:
        """Share of the blocks that requests hold, 0 to 1."""
        return 1.0 - self.pool.num_free / self.pool.num_usable

    def integrity_problems(self) -> list[str]:
        """Every broken invariant of pool, prefix map and tables, in words; empty when all is well."""
        holders = [block for state in self._requests.values() for table in state.tables for block in table]
        holders += [block for blocks in self._pending_release.values() for block in blocks]
        problems = self.pool.integrity_problems(holders)
        reserved = sum(state.num_reserved for state in self._requests.values())
        if reserved != self._num_reserved:
            problems.append(f"{self._num_reserved} blocks reserved, requests say {reserved}")
        for request_id, state in self._requests.items():
            if any(len(table) != state.num_blocks for table in state.tables):
                problems.append(f"tables of request {request_id} differ in length")
        return problems

    # ------------------------------------------------------------------------------------------- internal

    def _state(self, request: Request) -> _RequestBlocks:
        state = self._requests.get(request.id)
        if state is None:
            state = self._requests[request.id] = _RequestBlocks(request, len(self.groups))
        return state

    def _most_blocks_held(self, num_tokens: int) -> int:
        return sum(manager.most_blocks_held(num_tokens, self._longest_chunk) for manager in self._managers)

    def _reserve(self, state: _RequestBlocks) -> None:
        """Bring the request's reservation up to date with the blocks it holds."""
        still_needed = 0
        if state.num_blocks * self.block_size < state.num_admitted_tokens:
            for manager, num_slid in zip(self._managers, state.num_slid, strict=True):
                most = manager.most_blocks_held(state.num_admitted_tokens, self._longest_chunk)
                still_needed += max(0, most - (state.num_blocks - num_slid))
        self._num_reserved += still_needed - state.num_reserved
        state.num_reserved = still_needed

    def _extend_keys(self, state: _RequestBlocks, request: Request, num_blocks: int) -> None:
        extend_keys(state.keys, request.token_ids, num_blocks, self.block_size, state.extras, self._hash_function)

    def _release(self, blocks: list[Block], last_step: int) -> None:
        if last_step > self._last_ended_step:
            self._pending_release.setdefault(last_step, []).extend(blocks)
        else:
            self.pool.release(blocks)

    def _slide(self, state: _RequestBlocks, position: int) -> None:
        """Give back blocks that no query from `position` on reads; the null block takes their place."""
        for group, manager in enumerate(self._managers):
            first = min(manager.first_needed_block(position), state.num_blocks)
            if first > state.num_slid[group]:
                table = state.tables[group]
                slid = table[state.num_slid[group] : first]
                table[state.num_slid[group] : first] = [self.pool.null_block] * len(slid)
                state.num_slid[group] = first
                slid.reverse()
                self._release(slid, state.last_step)

    def _extend(self, state: _RequestBlocks, request: Request, end: int) -> BlockIds | None:
        """Grow the tables to `end` tokens, and enter the blocks that this step fills in the prefix map."""
        num_new = blocks_for(end, self.block_size) - state.num_blocks
        block_ids = NO_BLOCKS
        if num_new > 0:
            if num_new * len(self.groups) > self.pool.num_free:
                return None
            block_ids = []
            for table in state.tables:
                blocks = [self.pool.allocate() for _ in range(num_new)]
                table.extend(blocks)
                block_ids.append([block.id for block in blocks])
            state.num_blocks += num_new
            self._reserve(state)
        state.last_step = self._step
        if self._enable_prefix_caching:
            self._cache_full_blocks(state, request, end)
        return block_ids

    def _cache_full_blocks(self, state: _RequestBlocks, request: Request, end: int) -> None:
        num_full = min(end, len(request.token_ids)) // self.block_size
        if num_full <= state.num_cached_blocks:
            return
        cached = self._cached_by_step.setdefault(self._step, [])
        for index in range(state.num_cached_blocks, num_full):
            self._extend_keys(state, request, index + 1)
            for group, table in enumerate(state.tables):
                block = table[index]
                if block is self.pool.null_block:
                    continue
                found = self.pool.cache_block(block, state.keys[index], group)
                if found is block:
                    cached.append(block)
                elif found.key is not None:
                    state.keys[index] = found.key
        state.num_cached_blocks = num_full
