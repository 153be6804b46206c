"""Random arguments for every operator, odd sizes included; for tests and benchmarks of implementations.

What an operator must not read is NaN.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import Generator

from pelton.ops.arrays import Float32, Int32
from pelton.ops.dims import B, C, Dim, L, M, P, R, T, mask_words
from pelton.ops.kv_cache import KVCacheLayer
from pelton.ops.packed_linear import pack_linear
from pelton.ops.qk_norm import QKNorm

Sizes = Mapping[Dim, int]
_WIDTHS = (1, 2, 3, 7, 16, 31, 64, 65, 576)


def _normal(rng: Generator, *shape: int) -> Float32:
    return rng.standard_normal(shape, dtype=np.float32)


def _integers(rng: Generator, low: int, high: int, size: int) -> Int32:
    return rng.integers(low, high, size, dtype=np.int32)


def embed(rng: Generator, sizes: Sizes) -> tuple[Any, ...]:
    table = _normal(rng, int(rng.integers(1, 300)), int(rng.choice(_WIDTHS)))
    return _integers(rng, 0, len(table), sizes[T]), table, float(rng.choice([1.0, 25.3]))


def rms_norm(rng: Generator, sizes: Sizes) -> tuple[Any, ...]:
    width = int(rng.choice(_WIDTHS))
    residual = _normal(rng, sizes[T], width) if rng.random() < 0.5 else None
    return _normal(rng, sizes[T], width) * 3, _normal(rng, width), 1e-5, residual


def linear(rng: Generator, sizes: Sizes) -> tuple[Any, ...]:
    n, k = (int(width) for width in rng.choice(_WIDTHS, 2))
    residual = _normal(rng, sizes[T], n) if rng.random() < 0.5 else None
    bias = _normal(rng, n) if rng.random() < 0.5 else None
    return _normal(rng, sizes[T], k), pack_linear(_normal(rng, n, k), bias), residual


def gated_activation(rng: Generator, sizes: Sizes) -> tuple[Any, ...]:
    gate_up = _normal(rng, sizes[T], 2 * int(rng.choice(_WIDTHS)))
    gate_up[rng.random(gate_up.shape) < 0.1] *= 300  # where exp overflows
    return gate_up, str(rng.choice(["silu", "gelu_tanh"]))


def rotary(rng: Generator, sizes: Sizes) -> tuple[Any, ...]:
    frequencies = 10000.0 ** -rng.random(int(rng.choice(_WIDTHS))).astype(np.float32)
    return _integers(rng, 0, 2**17, sizes[T]), frequencies, float(rng.choice([1.0, 1.2]))


def rope_and_cache(rng: Generator, sizes: Sizes) -> tuple[Any, ...]:
    num_tokens, cache = sizes[T], _cache(rng, sizes[T] * 2)
    num_heads = cache.num_kv_heads * int(rng.integers(1, 4)) + 2 * cache.num_kv_heads
    angles = _normal(rng, num_tokens, cache.head_size // 2)
    num_slots = len(cache.array) * cache.block_size
    slots = rng.permutation(np.arange(cache.block_size, num_slots))[:num_tokens]
    qkv = _normal(rng, num_tokens, num_heads * cache.head_size)
    norms = None
    if rng.random() < 0.5:
        norms = QKNorm(_normal(rng, cache.head_size), _normal(rng, cache.head_size), 1e-6)
    return qkv, np.cos(angles), np.sin(angles), slots, cache, norms


def attention(rng: Generator, sizes: Sizes) -> tuple[Any, ...]:
    """Requests of all kinds: prefills from the start, chunks and decodes behind a context."""
    num_tokens, num_requests = sizes[T], sizes[R]
    cuts = rng.choice(np.arange(1, num_tokens), num_requests - 1, replace=False)
    query_start = np.sort(np.concatenate([[0], cuts, [num_tokens]])).astype(np.int32)
    contexts = _integers(rng, 0, 90, num_requests) * (rng.random(num_requests) < 0.8)
    seq_lens = (np.diff(query_start) + contexts).astype(np.int32)
    window = None if rng.random() < 0.5 else int(rng.integers(1, 60))
    cache = _cache(rng, int(seq_lens.sum()))
    block_table = _fill(rng, cache, contexts, seq_lens, window)
    q = _normal(rng, num_tokens, cache.num_kv_heads * int(rng.integers(1, 4)) * cache.head_size)
    softcap = None if rng.random() < 0.7 else 5.0
    return q, cache, block_table, query_start, seq_lens, cache.head_size**-0.5, window, softcap


def _cache(rng: Generator, num_tokens: int) -> KVCacheLayer:
    """A cache full of NaN, with at least as many blocks as tokens, besides the null block."""
    k, s, d = int(rng.integers(1, 4)), int(rng.choice([1, 4, 16])), int(rng.choice([2, 8, 64]))
    cache = KVCacheLayer("random", num_kv_heads=k, block_size=s, head_size=d)
    cache.bind(np.full((1 + num_tokens, 2, k, s, d), np.nan, np.float32))
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


def gather_rows(rng: Generator, sizes: Sizes) -> tuple[Any, ...]:
    return _normal(rng, sizes[T], int(rng.choice(_WIDTHS))), _integers(rng, 0, sizes[T], sizes[L])


def softcap(rng: Generator, sizes: Sizes) -> tuple[Any, ...]:
    return _normal(rng, sizes[L], int(rng.integers(1, 400))) * 20, float(rng.choice([1.0, 30.0]))


class AddRowNumber:
    """A logits hook: the i-th row gets i added."""

    def apply(self, logits: Float32) -> None:
        logits += np.arange(len(logits), dtype=np.float32)[:, None]


def process_logits(rng: Generator, sizes: Sizes) -> tuple[Any, ...]:
    rows = _integers(rng, 0, max(1, sizes[L]), sizes[C])
    return _logits(rng, sizes[L], int(rng.integers(1, 400))), rows, AddRowNumber()


def edit_logits(rng: Generator, sizes: Sizes) -> tuple[Any, ...]:
    """Rows edited in every way, in several ways, or not at all; sizes of 0 are possible, but for L where C is not 0."""
    num_edited = sizes[C]
    bias_start, penalty_start = _bounds(rng, num_edited, sizes[B]), _bounds(rng, num_edited, sizes[P])
    most = max([1, *np.diff(bias_start), *np.diff(penalty_start)])
    vocab_size = int(rng.integers(most, most + 400))
    masks = rng.integers(0, 2**32, (sizes[M], mask_words(vocab_size)), dtype=np.uint32)
    counts = _integers(rng, 1, 30, sizes[P]) * _integers(rng, 0, 2, sizes[P])
    penalties = rng.choice(
        np.array([[1, 0, 0], [1.3, 0, 0], [1, 0.7, 0], [1, 0, -1.5], [0.8, -1, 2]], np.float32), num_edited
    )
    has_rows = rng.random() < 0.7
    return (
        _logits(rng, sizes[L] if has_rows else num_edited, vocab_size),
        _integers(rng, 0, max(1, sizes[L]), num_edited) if has_rows else None,
        _integers(rng, -1, sizes[M], num_edited),
        masks,
        bias_start,
        _distinct_ids(rng, bias_start, vocab_size),
        _normal(rng, sizes[B]) * 10,
        penalty_start,
        _distinct_ids(rng, penalty_start, vocab_size),
        counts,
        penalties,
    )


def _bounds(rng: Generator, num_rows: int, num_entries: int) -> Int32:
    """Entries dealt out to rows, some of which may get none. -> [num_rows + 1]"""
    assert num_rows > 0 or num_entries == 0, "entries of no row"
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


def sample(rng: Generator, sizes: Sizes) -> tuple[Any, ...]:
    """A mix of greedy and random rows; every parameter is sometimes off."""
    seed = rng.integers(0, 2**64, sizes[L], dtype=np.uint64)
    choice, position = _integers(rng, 0, 1024, sizes[L]), _integers(rng, 0, 2**31 - 1, sizes[L])
    return *warp_logits(rng, sizes), seed, choice, position


def warp_logits(rng: Generator, sizes: Sizes) -> tuple[Any, ...]:
    rows, vocab_size = sizes[L], int(rng.integers(1, 400))
    warpers = [
        rng.choice(np.array(values, np.float32), rows)
        for values in ([0.0, 1e-30, 0.5, 1.0, 3.0], [0, 1, 5, vocab_size], [1e-6, 0.3, 0.9, 1.0], [0.0, 0.02, 0.3, 1.0])
    ]
    logits, edited = _logits(rng, rows, vocab_size), _logits(rng, sizes[C], vocab_size)
    edited_index = _integers(rng, -1, sizes[C], rows)
    return logits, edited, edited_index, np.stack(warpers, axis=1)


def logprobs(rng: Generator, sizes: Sizes) -> tuple[Any, ...]:
    """Some rows ask; some logits are equal; some rows have no token."""
    rows, vocab_size = sizes[L], int(rng.integers(1, 400))
    logits = _logits(rng, rows, vocab_size)
    logits[:, vocab_size // 2 :] = np.round(logits[:, vocab_size // 2 :])
    max_logprobs = int(rng.choice([0, min(20, vocab_size), vocab_size]))
    num_logprobs = _integers(rng, -1, max_logprobs + 1, rows)
    token_ids = _integers(rng, 0, vocab_size, rows)
    token_ids[rng.random(rows) < 0.1] = -1
    return logits, token_ids, num_logprobs, max_logprobs, bool(rng.random() < 0.7)
