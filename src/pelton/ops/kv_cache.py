"""The keys and values of one attention layer, as the operators see them."""

from typing import Literal, get_args

import numpy as np

from pelton.ops.arrays import BFLOAT16, Activations

CacheLayout = Literal["plain", "tiled"]
CACHE_DTYPES = ("float32", "bfloat16")
TILE = 16
"""Positions of a tile: as many float32 numbers fill the widest vector register."""


class KVCacheLayer:
    """A handle that programs are recorded with; the array is bound once the cache is sized.

    The array is [num_blocks, 2, num_kv_heads, block_size, head_size]: index 0 holds keys, 1 values. Position `offset`
    of block `b` is slot `b * block_size + offset`. Block 0 is the null block. Layers of different groups may be bound
    to one array.

    In the plain layout each part [block_size, head_size] is what it says; the tiled layout orders a part's elements as
    native kernels read them (`to_tiled`).
    """

    def __init__(
        self, name: str, *, num_kv_heads: int, block_size: int, head_size: int, dtype: str = "float32"
    ) -> None:
        assert dtype in CACHE_DTYPES, dtype
        self.name = name
        self.num_kv_heads = num_kv_heads
        self.block_size = block_size
        self.head_size = head_size
        self.dtype = dtype
        self.layout: CacheLayout = "plain"
        self._array: Activations | None = None

    def bind(self, array: Activations, layout: CacheLayout = "plain") -> None:
        """Use `array` from now on. Raises ValueError if its shape, dtype or memory order does not fit."""
        assert layout in get_args(CacheLayout), layout
        block = (2, self.num_kv_heads, self.block_size, self.head_size)
        if array.ndim != 5 or array.shape[1:] != block or array.dtype != self.dtype:
            raise ValueError(
                f"{self.name}: the KV cache must be {self.dtype} [num_blocks, {', '.join(map(str, block))}], "
                f"got {array.dtype} {list(array.shape)}"
            )
        if layout == "tiled" and not array.flags.c_contiguous:
            raise ValueError(f"{self.name}: a tiled KV cache must be C-ordered")
        self._array, self.layout = array, layout

    @property
    def array(self) -> Activations:
        """In the layout that it was bound with."""
        assert self._array is not None, f"{self.name}: no KV cache is bound"
        return self._array

    @property
    def plain_array(self) -> Activations:
        """For what reads the plain layout only."""
        array = self.array
        assert self.layout == "plain", f"{self.name}: the KV cache is {self.layout}"
        return array

    def __str__(self) -> str:
        return f"({self.name})" if self.dtype == "float32" else f"({self.name}, {self.dtype})"


def to_tiled(array: Activations) -> Activations:
    """A copy of a cache [num_blocks, 2, K, S, D] in the tiled layout, of the same shape.

    If S is a multiple of 16, the parts [S, D] are ordered thus; else they stay as they are:

    - keys: float32 [S / 16][D][16], bfloat16 [S / 16][D / 2][16][2];
    - values: float32 [S][D], bfloat16 [S / 2][D][2].

    The last axis of 2 holds neighbours: dimensions of a key, positions of a value. Raises ValueError for an odd D.
    """
    if _checked(array)[3] % TILE:
        return array.copy()
    tiled = np.empty(array.shape, array.dtype)
    for which, part in enumerate(_in_plain_order(tiled)):
        part[...] = array[:, which].reshape(part.shape)
    return tiled


def to_plain(array: Activations) -> Activations:
    """A copy of a cache in the tiled layout, in the plain one: the inverse of `to_tiled`."""
    if _checked(array)[3] % TILE:
        return array.copy()
    parts = [part.reshape(array[:, 0].shape) for part in _in_plain_order(array)]
    return np.stack(parts, axis=1)


def _in_plain_order(tiled: Activations) -> tuple[Activations, Activations]:
    """Views of the keys and values of a tiled cache whose elements are in the plain layout's order, with axes split."""
    blocks, _, heads, size, head_size = tiled.shape
    lead = (blocks, heads)
    keys, values = tiled[:, 0], tiled[:, 1]
    if tiled.dtype == BFLOAT16:
        pairs = keys.reshape(*lead, size // TILE, head_size // 2, TILE, 2).transpose(0, 1, 2, 4, 3, 5)
        return pairs, values.reshape(*lead, size // 2, head_size, 2).swapaxes(-1, -2)
    return keys.reshape(*lead, size // TILE, head_size, TILE).swapaxes(-1, -2), values


def _checked(array: Activations) -> tuple[int, ...]:
    if array.ndim != 5 or array.shape[1] != 2 or array.shape[-1] % 2:
        raise ValueError(f"a KV cache is [num_blocks, 2, K, S, D] with an even D, got {list(array.shape)}")
    return array.shape
