"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), and this step's write to the KV cache."""

import numpy as np

from pelton.ops.arrays import Activations, Float32, Int64
from pelton.ops.kv_cache import KVCacheLayer
from pelton.ops.qk_norm import QKNorm
from pelton.ops.reference.rms_norm import normalize


def rope_and_cache(
    qkv: Float32,
    cos: Float32,
    sin: Float32,
    slot_mapping: Int64,
    cache: KVCacheLayer,
    norms: QKNorm | None,
    out: Activations,
) -> None:
    """Normalise and rotate queries and keys; give back the queries, write keys and values to their slots.

    qkv [T, (H + 2K) * D], cos and sin [T, D / 2], slot_mapping [T] -> out [T, H * D].
    Computed in float32; queries, keys and values are rounded where the cache, whose dtype `out` has too, is bfloat16.
    Dimension i of a head rotates with dimension i + D / 2, as in Hugging Face's checkpoints.
    """
    num_tokens, half = cos.shape
    heads = qkv.reshape(num_tokens, -1, 2 * half)
    num_heads = heads.shape[1] - 2 * cache.num_kv_heads
    num_rotated = num_heads + cache.num_kv_heads
    straight = heads[:, :num_rotated]
    if norms is not None:
        straight = np.empty((num_tokens, num_rotated, 2 * half), np.float32)
        normalize(heads[:, :num_heads], norms.q, norms.eps, straight[:, :num_heads])
        normalize(heads[:, num_heads:num_rotated], norms.k, norms.eps, straight[:, num_heads:])
    first, second = straight[:, :, :half], straight[:, :, half:]
    c, s = cos[:, None], sin[:, None]

    rotated = np.empty((num_tokens, num_rotated, 2 * half), np.float32)
    np.subtract(first * c, second * s, out=rotated[:, :, :half])
    np.add(second * c, first * s, out=rotated[:, :, half:])

    out.reshape(num_tokens, num_heads, 2 * half)[...] = rotated[:, :num_heads]
    blocks, offsets = np.divmod(slot_mapping, cache.block_size)
    array = cache.plain_array
    array[blocks, 0, :, offsets] = rotated[:, num_heads:]
    array[blocks, 1, :, offsets] = heads[:, num_rotated:]
