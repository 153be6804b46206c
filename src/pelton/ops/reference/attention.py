"""Attention through the block table (Kwon et al. 2023, arXiv:2309.06180), with grouped queries."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pelton.ops.arrays import BFLOAT16, Activations, Float32, Int32, widened
from pelton.ops.kv_cache import KVCacheLayer

QUERY_TILE = 64
"""Queries that share one pass over the keys: bounds the score buffer to [K, G * 64, context]."""
_PARTIAL_FLOATS = 2**18
"""Bound of the buffer that holds the weighted values of consecutive blocks (1 MiB)."""


class _Piece(NamedTuple):
    """Consecutive blocks of the cache that hold the keys [start, stop), counted from the first key in sight.

    A single block may be cut to [low, high) of its positions; several blocks are whole.
    """

    block: int
    num_blocks: int
    low: int
    high: int
    start: int
    stop: int


def attention(
    q: Activations,
    cache: KVCacheLayer,
    block_table: Int32,
    query_start: Int32,
    seq_lens: Int32,
    scale: float,
    window: int | None,
    softcap: float | None,
    out_dtype: str,
    out: Activations,
) -> None:
    """Causal attention of this step's queries over the KV cache, which already holds this step's keys.

    q [T, H * D], block_table [R, max_blocks], query_start [R + 1], seq_lens [R] -> out [T, H * D].
    Request r owns queries [query_start[r], query_start[r + 1]), the last of its seq_lens[r] positions. The
    query at position p sees keys [max(0, p - window + 1), p]. With a soft cap, a score becomes
    softcap * tanh(score / softcap). What a query does not see does not reach it, whatever it is: slots outside of what
    all of a request's queries see are not read, nor are their block ids; later tokens of the step may be NaN.

    All is computed in float32, but for the weights that values are multiplied with: a bfloat16 cache has them rounded
    to bfloat16, not so in their sum. The result is rounded if out_dtype is bfloat16.
    """
    q = widened(q) * np.float32(scale)
    kv = cache.plain_array
    starts = query_start.tolist()
    for r, seq_len in enumerate(seq_lens.tolist()):
        stop = starts[r + 1]
        for first in range(starts[r], stop, QUERY_TILE):
            last = min(first + QUERY_TILE, stop)
            position = seq_len - stop + first
            with np.errstate(invalid="ignore"):
                attended = _attend(q[first:last], kv, block_table[r], position, window, softcap)
            if last - first > 1 and not np.isfinite(attended).all():
                # A weight of 0 does not keep out a value that is not finite: such rows are computed alone.
                for i in np.flatnonzero(~np.isfinite(attended).all(axis=1)).tolist():
                    query = q[first + i : first + i + 1]
                    attended[i] = _attend(query, kv, block_table[r], position + i, window, softcap)[0]
            out[first:last] = attended


def _attend(
    q: Float32, kv: Activations, blocks: Int32, position: int, window: int | None, softcap: float | None
) -> Float32:
    """Consecutive queries of one request, scaled, the first at `position`. -> what they attended to, [n, H * D]"""
    _, _, num_kv_heads, block_size, head_size = kv.shape
    n, k, d = len(q), num_kv_heads, head_size
    g = q.shape[1] // (k * d)
    low = 0 if window is None else max(0, position - window + 1)
    high = position + n
    max_blocks = max(1, _PARTIAL_FLOATS // (k * g * n * d))
    pieces = list(_pieces(blocks, block_size, low, high, max_blocks))

    # Legend: k kv heads, g query heads per kv head, n queries, d head size, m blocks, s block size.
    queries = q.reshape(n, k, g, d).transpose(1, 2, 0, 3).reshape(k, g * n, d)
    scores = np.empty((k, g * n, high - low), np.float32)
    for piece in pieces:
        target = scores[:, :, piece.start : piece.stop]
        if piece.num_blocks == 1:
            keys = kv[piece.block, 0, :, piece.low : piece.high]  # [k, s, d]
        else:
            keys = kv[piece.block : piece.block + piece.num_blocks, 0]  # [m, k, s, d]
            target = target.reshape(k, g * n, piece.num_blocks, block_size).transpose(2, 0, 1, 3)
        np.matmul(queries, widened(keys).swapaxes(-1, -2), out=target)

    if softcap is not None:
        scores /= np.float32(softcap)
        np.tanh(scores, out=scores)
        scores *= np.float32(softcap)
    if n > 1:
        _mask(scores.reshape(k, g, n, high - low), position - low, window)
    scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    total = np.add.reduce(scores, axis=-1, keepdims=True)
    if kv.dtype == BFLOAT16:
        scores = widened(scores.astype(BFLOAT16))

    # Blocks are summed one by one in order of position, however they lie in the cache.
    room = 1 + min(max_blocks, sum(piece.num_blocks for piece in pieces))
    partial = np.empty((room, k, g * n, d), np.float32)
    used = 0
    for piece in pieces:
        if used + piece.num_blocks > room:
            partial[0] = np.add.reduce(partial[:used], axis=0)
            used = 1
        weights = scores[:, :, piece.start : piece.stop]
        if piece.num_blocks == 1:
            values = kv[piece.block, 1, :, piece.low : piece.high]
            np.matmul(weights, widened(values), out=partial[used])
        else:
            values = kv[piece.block : piece.block + piece.num_blocks, 1]
            weights = weights.reshape(k, g * n, piece.num_blocks, block_size).transpose(2, 0, 1, 3)
            np.matmul(weights, widened(values), out=partial[used : used + piece.num_blocks])
        used += piece.num_blocks
    attended = np.add.reduce(partial[:used], axis=0)
    attended /= total
    by_query: Float32 = attended.reshape(k, g, n, d).transpose(2, 0, 1, 3).reshape(n, k * g * d)
    return by_query


def _mask(scores: Float32, offset: int, window: int | None) -> None:
    """scores [k, g, n, keys]: query i stands at key `offset + i`, and loses what is not in its sight."""
    query = np.arange(scores.shape[2])[:, None] + offset
    key = np.arange(scores.shape[3])
    hidden = key > query
    if window is not None:
        hidden |= key <= query - window
    np.copyto(scores, -np.inf, where=hidden)


def _pieces(blocks: Int32, block_size: int, low: int, high: int, max_count: int) -> Iterator[_Piece]:
    """Cut the keys at positions [low, high) into pieces."""
    first = low // block_size
    ids = blocks[first : -(-high // block_size)].tolist()
    i = 0
    while i < len(ids):
        begin = (first + i) * block_size
        count = 1
        if begin >= low:
            whole = min(len(ids) - i, (high - begin) // block_size, max_count)
            while count < whole and ids[i + count] == ids[i] + count:
                count += 1
        cut, end = max(low, begin), min(high, begin + count * block_size)
        yield _Piece(ids[i], count, cut - begin, end - begin, cut - low, end - low)
        i += count
