"""Random arguments for every operator, odd sizes included; for tests and benchmarks of implementations.

What an operator must not read is NaN.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import Generator

from pelton.ops.arrays import Activations, Float32, Int32
from pelton.ops.dims import B, C, Dim, L, M, P, R, T, mask_words
from pelton.ops.kv_cache import KVCacheLayer
from pelton.ops.packed_linear import FORMATS
from pelton.ops.qk_norm import QKNorm
from pelton.ops.reference.best_ids import find_best
from pelton.ops.rows_packer import pack_rows

Sizes = Mapping[Dim, int]
_WIDTHS = (1, 2, 3, 7, 16, 31, 48, 49, 64, 65, 100, 576)


def _normal(rng: Generator, *shape: int) -> Float32:
    return rng.standard_normal(shape, dtype=np.float32)


def _integers(rng: Generator, low: int, high: int, size: int) -> Int32:
    return rng.integers(low, high, size, dtype=np.int32)


def _activations(array: Float32, weight_format: str) -> Activations:
    return array.astype(FORMATS[weight_format].input_dtype, copy=False)


def embed(rng: Generator, sizes: Sizes, weight_format: str) -> tuple[Any, ...]:
    table = _normal(rng, int(rng.integers(1, 300)), int(rng.choice(_WIDTHS)))
    token_ids = _integers(rng, 0, len(table), sizes[T])
    return token_ids, pack_rows([table], weight_format=weight_format), float(rng.choice([1.0, 25.3]))


def rms_norm(rng: Generator, sizes: Sizes, weight_format: str) -> tuple[Any, ...]:
    width = int(rng.choice(_WIDTHS))
    residual = _normal(rng, sizes[T], width) if rng.random() < 0.5 else None
    return _normal(rng, sizes[T], width) * 3, _normal(rng, width), 1e-5, residual, FORMATS[weight_format].input_dtype


def linear(rng: Generator, sizes: Sizes, weight_format: str) -> tuple[Any, ...]:
    n, k = (int(width) for width in rng.choice(_WIDTHS, 2))
    residual = _normal(rng, sizes[T], n) if rng.random() < 0.5 else None
    bias = _normal(rng, n) if rng.random() < 0.5 else None
    weight = pack_rows([_normal(rng, n, k)], bias, weight_format=weight_format)
    return _activations(_normal(rng, sizes[T], k), weight_format), weight, residual


def gated_linear(rng: Generator, sizes: Sizes, weight_format: str) -> tuple[Any, ...]:
    """Products are of order 1; by biases, some gates are where exp overflows, or the cube of gelu."""
    size, k = (int(width) for width in rng.choice(_WIDTHS, 2))
    bias = None
    if rng.random() < 0.5:
        gate, up = _normal(rng, size), _normal(rng, size)
        is_far = rng.random(size) < 0.1
        gate[is_far] = rng.choice(np.array([-1e14, -100, 100, 1e14], np.float32), int(is_far.sum()))
        up[is_far] += 10
        bias = np.concatenate([gate, up])
    weight = pack_rows([_normal(rng, 2 * size, k) * np.float32(k**-0.5)], bias, weight_format=weight_format, gated=True)
    x = _activations(_normal(rng, sizes[T], k), weight_format)
    return x, weight, str(rng.choice(["silu", "gelu_tanh"]))


def rotary(rng: Generator, sizes: Sizes, weight_format: str) -> tuple[Any, ...]:
    frequencies = 10000.0 ** -rng.random(int(rng.choice(_WIDTHS))).astype(np.float32)
    return _integers(rng, 0, 2**20, sizes[T]), frequencies, float(rng.choice([1.0, 1.2]))


def rope_and_cache(rng: Generator, sizes: Sizes, weight_format: str) -> tuple[Any, ...]:
    num_tokens, cache = sizes[T], _cache(rng, sizes[T] * 2, 1, FORMATS[weight_format].input_dtype)
    num_heads = cache.num_kv_heads * int(rng.integers(1, 4)) + 2 * cache.num_kv_heads
    angles = _normal(rng, num_tokens, cache.head_size // 2)
    num_slots = len(cache.array) * cache.block_size
    slots = rng.permutation(np.arange(cache.block_size, num_slots))[:num_tokens]
    qkv = _normal(rng, num_tokens, num_heads * cache.head_size)
    norms = None
    if rng.random() < 0.5:
        norms = QKNorm(_normal(rng, cache.head_size), _normal(rng, cache.head_size), 1e-6)
    return qkv, np.cos(angles), np.sin(angles), slots, cache, norms


def attention(rng: Generator, sizes: Sizes, weight_format: str) -> tuple[Any, ...]:
    """Requests of all kinds: prefills from the start, chunks and decodes behind a context.

    One case in five has a request with a long context, and a wide window if any: longer than what kernels compute at
    once.
    """
    num_tokens, num_requests = sizes[T], sizes[R]
    cuts = rng.choice(np.arange(1, num_tokens), num_requests - 1, replace=False)
    query_start = np.sort(np.concatenate([[0], cuts, [num_tokens]])).astype(np.int32)
    contexts = _integers(rng, 0, 90, num_requests) * (rng.random(num_requests) < 0.8)
    is_long = rng.random() < 0.2
    if is_long:
        contexts[rng.integers(num_requests)] = rng.integers(90, 701)
    seq_lens = (np.diff(query_start) + contexts).astype(np.int32)
    window = None if rng.random() < 0.5 else int(rng.integers(1, 401 if is_long else 60))
    cache_dtype = out_dtype = "float32"
    if weight_format == "bf16":  # the dtypes of cache and output do not depend on each other
        choices = [("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float32", "bfloat16")]
        cache_dtype, out_dtype = choices[rng.choice(3, p=[0.6, 0.2, 0.2])]
    cache = _cache(rng, int(seq_lens.sum()), num_requests, cache_dtype)
    block_table = _fill(rng, cache, contexts, seq_lens, window)
    q = _normal(rng, num_tokens, cache.num_kv_heads * int(rng.integers(1, 5)) * cache.head_size).astype(cache_dtype)
    softcap = None if rng.random() < 0.7 else 5.0
    scale = cache.head_size**-0.5
    return q, cache, block_table, query_start, seq_lens, scale, window, softcap, out_dtype


def _cache(rng: Generator, num_tokens: int, num_requests: int, dtype: str) -> KVCacheLayer:
    """A cache full of NaN, with room for so many tokens of requests of any lengths, besides the null block."""
    k, s, d = int(rng.integers(1, 4)), int(rng.choice([1, 4, 16, 32])), int(rng.choice([2, 8, 24, 64, 128]))
    cache = KVCacheLayer("random", num_kv_heads=k, block_size=s, head_size=d, dtype=dtype)
    cache.bind(np.full((1 + num_tokens // s + num_requests, 2, k, s, d), np.nan, dtype))
    return cache


def _fill(rng: Generator, cache: KVCacheLayer, contexts: Int32, seq_lens: Int32, window: int | None) -> Int32:
    """Give every request blocks, and write the positions in its queries' sight. -> block table."""
    size = cache.block_size
    num_blocks = -(-seq_lens // size)
    ids = rng.permutation(np.arange(1, len(cache.array), dtype=np.int32))
    if rng.random() < 0.5:
        ids.sort()  # consecutive blocks
    table = np.zeros((len(seq_lens), int(num_blocks.max()) + int(rng.integers(0, 3))), np.int32)
    for r, (context, seq_len) in enumerate(zip(contexts.tolist(), seq_lens.tolist(), strict=True)):
        low = 0 if window is None else max(0, context - window + 1)
        table[r, low // size : num_blocks[r]] = ids[: num_blocks[r] - low // size]
        ids = ids[num_blocks[r] :]
        for position in range(low, seq_len):
            block = cache.array[table[r, position // size]]
            block[:, :, position % size] = _normal(rng, 2, cache.num_kv_heads, cache.head_size)
    return table


def gather_rows(rng: Generator, sizes: Sizes, weight_format: str) -> tuple[Any, ...]:
    x = _activations(_normal(rng, sizes[T], int(rng.choice(_WIDTHS))), weight_format)
    return x, _integers(rng, 0, sizes[T], sizes[L])


def logits(rng: Generator, sizes: Sizes, weight_format: str) -> tuple[Any, ...]:
    """Some tokens are equal everywhere; a few rows are broken, or have no token left, but where a soft cap hides it."""
    vocab_size, k = int(rng.integers(1, 400)), int(rng.choice(_WIDTHS))
    array = _normal(rng, vocab_size, k)
    array[rng.random(vocab_size) < 0.1] = array[int(rng.integers(vocab_size))]
    array[:, 0] = np.abs(array[:, 0]) + np.float32(0.1)
    x = _normal(rng, sizes[L], k)
    for value in (np.nan, np.inf, -np.inf):
        x[rng.random(sizes[L]) < 0.05, 0] = value
    bias = _normal(rng, vocab_size) if rng.random() < 0.3 else None
    softcap = None if rng.random() < 0.6 else float(rng.choice([1.0, 30.0]))
    weight = pack_rows([array], bias, weight_format=weight_format)
    return _activations(x, weight_format), weight, softcap, _integers(rng, 0, 2, sizes[L])


class AddEditIndex:
    """A logits hook: edit i adds i."""

    def apply(self, logits: Float32, edit_index: Int32) -> None:
        is_edited = edit_index >= 0
        logits[is_edited] += edit_index[is_edited, None].astype(np.float32)


def process_logits(rng: Generator, sizes: Sizes, weight_format: str) -> tuple[Any, ...]:
    logits, edit_index = _logits(rng, sizes[L], int(rng.integers(1, 400))), _edit_index(rng, sizes)
    logits[edit_index < 0] = np.nan
    return logits, edit_index, AddEditIndex()


def _edit_index(rng: Generator, sizes: Sizes) -> Int32:
    return _integers(rng, -1, sizes[C], sizes[L])


def edit_logits(rng: Generator, sizes: Sizes, weight_format: str) -> tuple[Any, ...]:
    """Rows edited in every way, in several ways, or not at all. Without edits there are no entries either."""
    num_edits = sizes[C]
    num_biases, num_penalties = (sizes[B], sizes[P]) if num_edits else (0, 0)
    bias_start, penalty_start = _bounds(rng, num_edits, num_biases), _bounds(rng, num_edits, num_penalties)
    most = max([1, *np.diff(bias_start), *np.diff(penalty_start)])
    vocab_size = int(rng.integers(most, most + 400))
    masks = rng.integers(0, 2**32, (sizes[M], mask_words(vocab_size)), dtype=np.uint32)
    counts = _integers(rng, 1, 30, num_penalties) * _integers(rng, 0, 2, num_penalties)
    penalties = rng.choice(
        np.array([[1, 0, 0], [1.3, 0, 0], [1, 0.7, 0], [1, 0, -1.5], [0.8, -1, 2]], np.float32), num_edits
    )
    logits, edit_index = _logits(rng, sizes[L], vocab_size), _edit_index(rng, sizes)
    logits[edit_index < 0] = np.nan
    return (
        logits,
        edit_index,
        _integers(rng, -1, sizes[M], num_edits),
        masks,
        bias_start,
        _distinct_ids(rng, bias_start, vocab_size),
        _normal(rng, num_biases) * 10,
        penalty_start,
        _distinct_ids(rng, penalty_start, vocab_size),
        counts,
        penalties,
    )


def _bounds(rng: Generator, num_rows: int, num_entries: int) -> Int32:
    """Entries dealt out to rows, some of which may get none. -> [num_rows + 1]"""
    cuts = np.sort(_integers(rng, 0, num_entries + 1, max(0, num_rows - 1)))
    return np.concatenate([[0], cuts, [num_entries] * (num_rows > 0)]).astype(np.int32)


def _distinct_ids(rng: Generator, bounds: Int32, vocab_size: int) -> Int32:
    rows = [rng.permutation(vocab_size)[:count] for count in np.diff(bounds)]
    return np.concatenate([[], *rows]).astype(np.int32)


def _logits(rng: Generator, rows: int, vocab_size: int) -> Float32:
    """Some tokens are ruled out; a few rows are broken, or have no token left."""
    logits = _normal(rng, rows, vocab_size) * 4
    logits[rng.random(logits.shape) < 0.1] = -np.inf
    for value in (np.nan, np.inf):
        hit = rng.random(rows) < 0.05
        logits[hit, _integers(rng, 0, vocab_size, int(hit.sum()))] = value
    logits[rng.random(rows) < 0.05] = -np.inf
    return logits


def sample(rng: Generator, sizes: Sizes, weight_format: str) -> tuple[Any, ...]:
    """A mix of greedy and random rows; every parameter is sometimes off."""
    logits, edited, edit_index, warpers = _scores(rng, sizes)
    best_ids = find_best(logits)
    is_edited = edit_index >= 0
    logits[is_edited | (warpers[:, 0] == 0.0)] = np.nan
    edited[~is_edited] = np.nan
    seed = rng.integers(0, 2**64, sizes[L], dtype=np.uint64)
    choice, position = _integers(rng, 0, 1024, sizes[L]), _integers(rng, 0, 2**31 - 1, sizes[L])
    return logits, best_ids, edited, edit_index, warpers, seed, choice, position


def warp_logits(rng: Generator, sizes: Sizes, weight_format: str) -> tuple[Any, ...]:
    logits, edited, edit_index, warpers = _scores(rng, sizes)
    num_logprobs = _integers(rng, -1, 4, sizes[L])
    is_edited, is_asked = edit_index >= 0, num_logprobs >= 0
    logits[is_edited | ~is_asked] = np.nan
    edited[~is_edited | ~is_asked] = np.nan
    return logits, edited, edit_index, warpers, num_logprobs


def _scores(rng: Generator, sizes: Sizes) -> tuple[Float32, Float32, Int32, Float32]:
    """Logits, edited logits, edit index, warpers."""
    rows, vocab_size = sizes[L], int(rng.integers(1, 400))
    warpers = [
        rng.choice(np.array(values, np.float32), rows)
        for values in ([0.0, 1e-30, 0.5, 1.0, 3.0], [0, 1, 5, vocab_size], [1e-6, 0.3, 0.9, 1.0], [0.0, 0.02, 0.3, 1.0])
    ]
    logits, edited = _logits(rng, rows, vocab_size), _logits(rng, rows, vocab_size)
    return logits, edited, _edit_index(rng, sizes), np.stack(warpers, axis=1)


def logprobs(rng: Generator, sizes: Sizes, weight_format: str) -> tuple[Any, ...]:
    """Some rows ask; some logits are equal; some rows have no token."""
    rows, vocab_size = sizes[L], int(rng.integers(1, 400))
    logits = _logits(rng, rows, vocab_size)
    logits[:, vocab_size // 2 :] = np.round(logits[:, vocab_size // 2 :])
    max_logprobs = int(rng.choice([0, min(20, vocab_size), vocab_size]))
    num_logprobs = _integers(rng, -1, max_logprobs + 1, rows)
    token_ids = _integers(rng, 0, vocab_size, rows)
    token_ids[rng.random(rows) < 0.1] = -1
    logits[(num_logprobs < 0) | (token_ids < 0)] = np.nan
    return logits, token_ids, num_logprobs, max_logprobs, bool(rng.random() < 0.7)
