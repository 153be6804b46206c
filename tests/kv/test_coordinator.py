"""Blocks for requests: prefix hits, eviction, admission, sliding windows, deferred release."""

import pytest

from pelton.core.kv_spec import KVCacheGroup
from pelton.core.messages import EngineCoreRequest
from pelton.core.request import Request
from pelton.kv import KVCacheCoordinator, group_layers
from pelton.kv.block_key import HASH_FUNCTIONS
from pelton.sampling_params import SamplingParams
from tests.support.fakes import full_spec, sliding_spec

BLOCK = 4


def make_request(request_id: str, token_ids: list[int], salt: str | None = None) -> Request:
    message = EngineCoreRequest(
        request_id, token_ids, SamplingParams(temperature=0, max_tokens=100), 0.0, [], cache_salt=salt
    )
    return Request(message, max_model_len=1000)


class Cache:
    """A coordinator driven by hand, one step per call."""

    def __init__(self, *specs, num_blocks: int = 33, longest_chunk: int = 64, **options) -> None:
        self.groups: list[KVCacheGroup] = group_layers(specs or [full_spec(BLOCK)])
        self.kv = KVCacheCoordinator(self.groups, num_blocks, longest_chunk=longest_chunk, **options)
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        self.kv.begin_step(self.steps)

    def admit(self, request: Request, num_new: int | None = None, headroom: int = 0):
        """Admit and compute; returns (hit tokens, block ids) or None."""
        self.step()
        hit = self.kv.find_prefix(request)
        num_new = len(request.token_ids) - hit.num_tokens if num_new is None else num_new
        block_ids = self.kv.admit(request, hit, num_new, headroom=headroom)
        if block_ids is None:
            return None
        request.num_computed_tokens = hit.num_tokens + num_new
        self.kv.end_step(self.steps)
        return hit.num_tokens, block_ids

    def extend(self, request: Request, token_ids: list[int], *, end: bool = True):
        """Give a running request more tokens and compute them."""
        self.step()
        request.token_ids += token_ids
        request.num_tokens = len(request.token_ids)
        block_ids = self.kv.allocate_slots(request, len(token_ids))
        if block_ids is not None:
            request.num_computed_tokens += len(token_ids)
        if end:
            self.kv.end_step(self.steps)
        return block_ids

    def check(self) -> None:
        assert self.kv.integrity_problems() == []


@pytest.mark.parametrize("algorithm", HASH_FUNCTIONS)
def test_second_request_takes_the_blocks_of_the_first(algorithm):
    cache = Cache(hash_function=HASH_FUNCTIONS[algorithm])
    first, second = make_request("a", list(range(13))), make_request("b", [*range(12), 99, 98])
    assert cache.admit(first)[0] == 0
    hit, block_ids = cache.admit(second)
    assert hit == 12
    assert block_ids[0][:3] == [block.id for block in cache.kv._requests["a"].tables[0][:3]]
    assert all(cache.kv.pool.blocks[i].ref_count == 2 for i in block_ids[0][:3])
    cache.check()
    cache.kv.free(first)
    cache.kv.free(second)
    cache.check()
    assert cache.kv.pool.num_free == cache.kv.pool.num_usable


def test_a_hit_leaves_at_least_one_token_to_compute():
    """The same prompt of an exact multiple of the block size, sent twice."""
    cache = Cache()
    for length, expected in ((16, 12), (17, 16), (15, 12), (4, 0), (5, 4)):
        cache.kv.reset_prefix_cache()
        tokens = list(range(length))
        first, second = make_request("a", tokens), make_request("b", tokens)
        cache.admit(first)
        assert cache.admit(second)[0] == expected, length
        cache.kv.free(first)
        cache.kv.free(second)


def test_salt_isolates():
    cache = Cache()
    tokens = list(range(13))
    assert cache.admit(make_request("a", tokens, salt="tenant 1"))[0] == 0
    assert cache.admit(make_request("b", tokens, salt="tenant 2"))[0] == 0
    assert cache.admit(make_request("c", tokens))[0] == 0
    assert cache.admit(make_request("d", tokens, salt="tenant 1"))[0] == 12
    cache.check()


def test_colliding_hashes_never_serve_foreign_blocks():
    """A hash of one value for everything: hits are found, and only true ones."""
    cache = Cache(hash_function=lambda parent, tokens, extras: 0, num_blocks=100)
    prompts = [[n] * 9 for n in range(5)] + [[0] * 4 + [n] * 5 for n in range(1, 5)]
    hits = [cache.admit(make_request(f"cold {n}", prompt))[0] for n, prompt in enumerate(prompts)]
    assert hits == [0] * 5 + [4] * 4
    assert [cache.admit(make_request(f"hot {n}", prompt))[0] for n, prompt in enumerate(prompts)] == [8] * 9
    cache.check()


def test_generated_tokens_are_found_too():
    cache = Cache()
    request = make_request("a", list(range(6)))
    cache.admit(request)
    for token in range(6, 14):
        cache.extend(request, [token])
    assert cache.admit(make_request("b", list(range(14))))[0] == 12


def test_disabled_prefix_caching_finds_nothing():
    cache = Cache(enable_prefix_caching=False)
    tokens = list(range(13))
    assert cache.admit(make_request("a", tokens))[0] == 0
    assert cache.admit(make_request("b", tokens))[0] == 0
    assert not any(block.key for block in cache.kv.pool.blocks)


def test_least_recently_used_prefix_goes_first_and_its_end_before_its_start():
    cache = Cache(num_blocks=9)
    old, new = make_request("old", list(range(100, 113))), make_request("new", list(range(200, 213)))
    cache.admit(old)
    cache.admit(new)
    cache.kv.free(old)
    cache.kv.free(new)
    # 8 blocks: two without a key (the unfinished ends), then old's blocks from the end, then new's.
    grabber = make_request("c", list(range(300, 315)))
    assert len(cache.admit(grabber)[1][0]) == 4
    assert cache.kv.find_prefix(make_request("d", list(range(100, 113)))).num_tokens == 4
    assert cache.kv.find_prefix(make_request("e", list(range(200, 213)))).num_tokens == 12
    cache.check()


def test_a_block_leaves_the_map_only_when_it_is_popped_for_reuse():
    cache = Cache(num_blocks=5)
    request = make_request("a", list(range(16)))
    cache.admit(request)
    cache.kv.free(request)
    assert cache.kv.find_prefix(make_request("b", list(range(17)))).num_tokens == 16
    cache.admit(make_request("c", [50, 51]))
    assert cache.kv.find_prefix(make_request("d", list(range(17)))).num_tokens == 12


def test_admission_is_all_or_nothing_and_keeps_headroom():
    cache = Cache(num_blocks=11)  # 10 usable
    first = make_request("a", list(range(20)))
    assert len(cache.admit(first, num_new=4)[1][0]) == 1  # holds 1 block, 4 more are promised to it
    second = make_request("b", list(range(50, 70)))
    assert cache.admit(second, num_new=4, headroom=1) is None  # 5 needed, 1 spare: 6 of 5
    assert cache.kv.pool.num_free == 9
    third = make_request("c", list(range(80, 96)))
    assert cache.admit(third, num_new=4, headroom=1) is not None
    cache.check()


def test_running_requests_get_all_blocks_or_none():
    cache = Cache(num_blocks=4)
    request = make_request("a", list(range(8)))
    cache.admit(request)
    assert cache.extend(request, [1, 2, 3, 4, 5]) is None  # two blocks needed, one free
    assert cache.kv.pool.num_free == 1
    cache.check()


def test_a_step_that_fails_withdraws_what_it_was_to_fill():
    cache = Cache()
    request = make_request("a", list(range(9)))
    cache.step()
    cache.kv.admit(request, cache.kv.find_prefix(request), 9, headroom=0)
    assert cache.kv.find_prefix(make_request("b", list(range(9)))).num_tokens == 8, "findable from that step on"
    cache.kv.free(request)
    cache.kv.end_step(cache.steps, failed=True)
    assert cache.kv.find_prefix(make_request("c", list(range(9)))).num_tokens == 0
    cache.check()


def test_blocks_wait_for_the_steps_that_read_them():
    cache = Cache()
    request = make_request("a", list(range(9)))
    cache.admit(request)
    usable = cache.kv.pool.num_usable
    cache.extend(request, [1], end=False)  # step 2 is in flight
    cache.step()
    cache.kv.free(request)
    assert cache.kv.has_pending_release
    assert cache.kv.pool.num_free == usable - 3
    cache.check()
    cache.kv.end_step(2)
    assert not cache.kv.has_pending_release
    assert cache.kv.pool.num_free == usable
    cache.check()


class TestSlidingWindow:
    """A window of 6 in blocks of 4: the query at position p reads [p - 5, p]."""

    def test_blocks_slide_out_and_the_null_block_takes_their_place(self):
        cache = Cache(sliding_spec(6, BLOCK))
        request = make_request("a", list(range(8)))
        cache.admit(request)
        used = []
        for token in range(8, 24):
            cache.extend(request, [token])
            used.append(cache.kv.pool.num_usable - cache.kv.pool.num_free)
            table = cache.kv._requests["a"].tables[0]
            position = request.num_computed_tokens - 1
            for block in table[max(0, position - 5) // BLOCK :]:
                assert block is not cache.kv.pool.null_block
        assert max(used) == 3
        assert table[:3] == [cache.kv.pool.null_block] * 3
        cache.check()

    @pytest.mark.parametrize(("length", "kept"), [(17, 2), (18, 2), (21, 2), (24, 2)])
    def test_a_hit_needs_only_the_blocks_inside_the_window(self, length, kept):
        """Position 16 reads [11, 16]: blocks 2 and 3, not 0 and 1."""
        cache = Cache(sliding_spec(6, BLOCK))
        request = make_request("a", list(range(length)))
        cache.admit(request)
        for index in (0, 1):
            cache.kv.pool.evict_block(cache.kv._requests["a"].tables[0][index])
        hit = cache.kv.find_prefix(make_request("b", list(range(length))))
        assert hit.num_tokens == (length - 1) // BLOCK * BLOCK
        assert sum(block is not cache.kv.pool.null_block for block in hit.tables[0]) == kept

    def test_no_hit_where_a_block_of_the_window_is_gone(self):
        cache = Cache(sliding_spec(6, BLOCK))
        cache.admit(make_request("a", list(range(17))))
        cache.kv.pool.evict_block(cache.kv._requests["a"].tables[0][2])
        # A hit of 16 needs blocks 2 and 3, one of 12 needs 1 and 2; one of 8 needs 0 and 1.
        assert cache.kv.find_prefix(make_request("b", list(range(17)))).num_tokens == 8
        cache.kv.pool.evict_block(cache.kv._requests["a"].tables[0][0])
        assert cache.kv.find_prefix(make_request("c", list(range(17)))).num_tokens == 0

    @pytest.mark.parametrize(("window", "first"), [(1, 4), (2, 3), (5, 3), (6, 2), (9, 2), (10, 1), (100, 0)])
    def test_first_needed_block(self, window, first):
        """The query at position 16 in blocks of 4."""
        cache = Cache(sliding_spec(window, BLOCK))
        assert cache.kv._managers[0].first_needed_block(16) == first

    def test_a_long_request_fits_a_small_pool(self):
        cache = Cache(sliding_spec(6, BLOCK), num_blocks=7, longest_chunk=4)
        assert cache.kv.can_ever_fit(10_000)
        assert cache.kv.longest_fitting() == 2**31
        request = make_request("a", list(range(100)))
        cache.admit(request, num_new=4)
        while request.num_computed_tokens < 100:
            cache.step()
            assert cache.kv.allocate_slots(request, 4) is not None
            request.num_computed_tokens += 4
            cache.kv.end_step(cache.steps)
        cache.check()


class TestSeveralGroups:
    def test_a_hit_must_suit_every_group(self):
        cache = Cache(full_spec(BLOCK), sliding_spec(6, BLOCK), sliding_spec(11, BLOCK), num_blocks=100)
        cache.admit(make_request("a", list(range(25))))
        tables = cache.kv._requests["a"].tables
        assert cache.kv.find_prefix(make_request("b", list(range(25)))).num_tokens == 24
        cache.kv.pool.evict_block(tables[0][5])  # the full group now ends at 20
        assert cache.kv.find_prefix(make_request("c", list(range(25)))).num_tokens == 20
        cache.kv.pool.evict_block(tables[2][2])  # the window of 11 at 20 begins in block 2, at 16 in block 1
        assert cache.kv.find_prefix(make_request("d", list(range(25)))).num_tokens == 8

    def test_every_group_has_blocks_of_its_own(self):
        cache = Cache(full_spec(BLOCK), sliding_spec(6, BLOCK), num_blocks=20)
        _, block_ids = cache.admit(make_request("a", list(range(10))))
        assert [len(ids) for ids in block_ids] == [3, 3]
        assert not set(block_ids[0]) & set(block_ids[1])
        cache.check()

    def test_a_request_that_can_never_fit(self):
        cache = Cache(full_spec(BLOCK), sliding_spec(6, BLOCK), num_blocks=13, longest_chunk=4)
        # 12 blocks: the window group holds at most ceil((5 + 4) / 4) + 1 = 4.
        assert cache.kv.can_ever_fit(32)
        assert not cache.kv.can_ever_fit(33)
        assert cache.kv.longest_fitting() == 32


class TestIntegrityCheck:
    """Every kind of damage is named."""

    @pytest.fixture
    def cache(self):
        cache = Cache()
        cache.admit(make_request("a", list(range(9))))
        return cache

    def table(self, cache):
        return cache.kv._requests["a"].tables[0]

    def test_sound(self, cache):
        assert cache.kv.integrity_problems() == []

    def test_wrong_ref_count(self, cache):
        self.table(cache)[0].ref_count = 2
        assert "is held 1 times" in cache.kv.integrity_problems()[0]

    def test_block_that_is_free_and_referenced(self, cache):
        cache.kv.pool._free.append(self.table(cache)[2])
        assert any("is free" in problem for problem in cache.kv.integrity_problems())

    def test_lost_block(self, cache):
        cache.kv.pool.make_block()
        assert any("is not free" in problem for problem in cache.kv.integrity_problems())

    def test_wrong_size_of_the_free_queue(self, cache):
        cache.kv.pool._free.size += 1
        assert any("free queue counts" in problem for problem in cache.kv.integrity_problems())

    def test_key_that_is_not_in_the_map(self, cache):
        cache.kv.pool.prefix_maps[0].clear()
        assert any("not found" in problem for problem in cache.kv.integrity_problems())

    def test_map_entry_without_key(self, cache):
        self.table(cache)[0].key = None
        assert any("prefix map" in problem for problem in cache.kv.integrity_problems())

    def test_damaged_null_block(self, cache):
        cache.kv.pool.null_block.ref_count = 1
        assert any("null block" in problem for problem in cache.kv.integrity_problems())

    def test_tables_of_different_length(self):
        cache = Cache(full_spec(BLOCK), sliding_spec(6, BLOCK))
        cache.admit(make_request("a", list(range(9))))
        cache.kv._requests["a"].num_blocks += 1
        assert any("differ in length" in problem for problem in cache.kv.integrity_problems())

    def test_wrong_reservation(self, cache):
        cache.kv._num_reserved += 1
        assert any("reserved" in problem for problem in cache.kv.integrity_problems())
