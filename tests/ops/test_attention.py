"""What the generated cases of test_operators cannot pin down about attention."""

import tracemalloc

import numpy as np
import pytest

from pelton.ops import KVCacheLayer
from pelton.ops.reference import attention

K, S, D, H = 2, 4, 8, 6


def make_cache(num_blocks: int, dtype: str = "float32") -> KVCacheLayer:
    cache = KVCacheLayer("test", num_kv_heads=K, block_size=S, head_size=D, dtype=dtype)
    cache.bind(np.full((num_blocks, 2, K, S, D), np.nan, dtype))
    return cache


def run(
    cache: KVCacheLayer, q: np.ndarray, block_ids: list[int], seq_len: int, window: int | None = None
) -> np.ndarray:
    out = np.empty(q.shape, np.float32)
    table = np.array([block_ids], np.int32)
    bounds, lens = np.array([0, len(q)], np.int32), np.array([seq_len], np.int32)
    attention(q.astype(cache.dtype), cache, table, bounds, lens, D**-0.5, window, None, "float32", out)
    return out


def fill(cache: KVCacheLayer, block_ids: list[int], keys_values: np.ndarray, low: int = 0) -> None:
    """Write positions from `low` of keys_values [2, K, positions, D]."""
    for position in range(low, keys_values.shape[2]):
        cache.array[block_ids[position // S], :, :, position % S] = keys_values[:, :, position]


@pytest.mark.parametrize("seq_len", [1, 3, 4, 5, 8, 29, 40])
def test_where_the_blocks_lie_changes_no_bit(seq_len: int) -> None:
    rng = np.random.default_rng(seq_len)
    keys_values = rng.standard_normal((2, K, seq_len, D), dtype=np.float32)
    num_blocks = -(-seq_len // S)
    for n in {1, min(3, seq_len), seq_len}:
        q = rng.standard_normal((n, H * D), dtype=np.float32)
        results = []
        up = np.arange(1, 41)
        for ids in (up, up[::-1], rng.permutation(up), up[6:]):
            cache = make_cache(41)
            block_ids = ids[:num_blocks].tolist()
            fill(cache, block_ids, keys_values)
            results.append(run(cache, q, block_ids, seq_len))
        assert all(np.array_equal(result, results[0]) for result in results)
        assert np.isfinite(results[0]).all()


@pytest.mark.parametrize("window", [1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("distance", [-1, 0, 1])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_window_boundaries(window: int, distance: int, n: int) -> None:
    """Contexts around the length of the window; blocks before it are the null block."""
    seq_len = max(1, window + distance) + n - 1
    rng = np.random.default_rng(0)
    keys_values = rng.standard_normal((2, K, seq_len, D), dtype=np.float32)
    q = rng.standard_normal((n, H * D), dtype=np.float32)
    low = max(0, seq_len - n - window + 1)
    block_ids = [0 if (i + 1) * S <= low else 5 + i for i in range(-(-seq_len // S))]
    cache = make_cache(20)
    fill(cache, block_ids, keys_values, low)
    out = run(cache, q, block_ids, seq_len, window)

    keys, values = keys_values.astype(np.float64)
    for i in range(n):
        position = seq_len - n + i
        seen = slice(max(0, position - window + 1), position + 1)
        for h in range(H):
            scores = keys[h // 3, seen] @ q[i, h * D : (h + 1) * D] * D**-0.5
            weights = np.exp(scores - scores.max())
            expected = weights @ values[h // 3, seen] / weights.sum()
            np.testing.assert_allclose(out[i, h * D : (h + 1) * D], expected, rtol=1e-5, atol=1e-5)


def test_a_window_as_long_as_the_context_is_full_attention() -> None:
    rng = np.random.default_rng(1)
    cache, block_ids = make_cache(10), [4, 2, 9]
    fill(cache, block_ids, rng.standard_normal((2, K, 12, D), dtype=np.float32))
    q = rng.standard_normal((12, H * D), dtype=np.float32)
    assert np.array_equal(run(cache, q, block_ids, 12), run(cache, q, block_ids, 12, window=12))


def test_long_prefill_in_tiles_and_chunks() -> None:
    """More queries than a tile, and more weighted values than the partial buffer holds."""
    rng = np.random.default_rng(2)
    seq_len = 400
    cache, block_ids = make_cache(101), list(range(1, 101))
    fill(cache, block_ids, rng.standard_normal((2, K, seq_len, D), dtype=np.float32))
    q = rng.standard_normal((seq_len, H * D), dtype=np.float32)
    whole = run(cache, q, block_ids, seq_len)
    for start, stop in ((0, 1), (1, 130), (130, 133), (133, 400)):
        chunk = run(cache, q[start:stop], block_ids, stop)
        np.testing.assert_allclose(chunk, whole[start:stop], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("n", "share"), [(1, 0.1), (16, 0.3)])
def test_keys_and_values_are_never_gathered(n: int, share: float) -> None:
    """Copying them would cost more memory traffic than attention itself. With the sizes of a real model, the scores
    and weighted values that a call does allocate are small beside 2,000 keys and values of 8 heads."""
    num_kv_heads, block_size, head_size, seq_len = 8, 16, 128, 2000
    cache = KVCacheLayer("test", num_kv_heads=num_kv_heads, block_size=block_size, head_size=head_size)
    num_blocks = seq_len // block_size
    rng = np.random.default_rng(3)
    cache.bind(rng.standard_normal((num_blocks + 1, 2, num_kv_heads, block_size, head_size), dtype=np.float32))
    table = (rng.permutation(num_blocks) + 1).astype(np.int32)[None]
    q = rng.standard_normal((n, 2 * num_kv_heads * head_size), dtype=np.float32)
    out = np.empty_like(q)
    bounds, lens = np.array([0, n], np.int32), np.array([seq_len], np.int32)
    tracemalloc.start()
    try:
        attention(q, cache, table, bounds, lens, head_size**-0.5, None, None, "float32", out)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.isfinite(out).all()
    assert peak < share * cache.array[1:].nbytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [None, 3, 7])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_a_query_does_not_see_does_not_reach_it(dtype: str, window: int | None, broken: float) -> None:
    """Tokens of one chunk, one of which is broken: those before it, and those whose window it has left, are as ever."""
    rng = np.random.default_rng(4)
    context, n = 5, 12
    block_ids = [3, 4, 9, 7, 1]
    keys_values = rng.standard_normal((2, K, context + n, D), dtype=np.float32)
    q = rng.standard_normal((n, H * D), dtype=np.float32)
    cache = make_cache(10, dtype)
    fill(cache, block_ids, keys_values)
    sound = run(cache, q, block_ids, context + n, window)
    assert np.isfinite(sound).all()
    for bad in range(n):
        cache = make_cache(10, dtype)
        fill(cache, block_ids, keys_values)
        cache.array[block_ids[(context + bad) // S], :, :, (context + bad) % S] = broken
        queries = q.copy()
        queries[bad] = np.nan
        with np.errstate(all="ignore"):
            out = run(cache, queries, block_ids, context + n, window)
        sees = [bad <= i < bad + (window or n) for i in range(n)]
        assert np.isnan(out[sees]).all()
        np.testing.assert_allclose(out[np.logical_not(sees)], sound[np.logical_not(sees)], rtol=1e-5, atol=1e-5)


def test_weights_of_a_bfloat16_cache_are_rounded_and_their_sum_is_not() -> None:
    """Two keys of weights 1 and 1 / 3, whose values are 1: the result tells what the weights were."""
    cache = make_cache(2, "bfloat16")
    keys_values = np.ones((2, K, 2, D), np.float32)
    keys_values[0] = 0.0
    keys_values[0, :, 0] = -1.0
    fill(cache, [1], keys_values)
    q = np.zeros((1, H * D), np.float32)
    q[0, ::D] = 3.0
    score = np.float32(-3.0) * np.float32(D**-0.5)
    weight = np.exp(score)
    rounded = weight.astype("bfloat16").astype(np.float32)
    assert abs(rounded / weight - 1) > 1e-4
    np.testing.assert_allclose(run(cache, q, [1], 2), (1 + rounded) / (1 + weight), rtol=1e-6)


def test_unbound_cache() -> None:
    cache = KVCacheLayer("layers.0.attention", num_kv_heads=K, block_size=S, head_size=D)
    with pytest.raises(AssertionError, match=r"layers\.0\.attention: no KV cache is bound"):
        run(cache, np.zeros((1, H * D), np.float32), [1], 1)
