"""Rows of the embedding table."""

import numpy as np

from pelton.ops.arrays import Float32, Int32
from pelton.ops.packed_linear import PackedLinear


def embed(token_ids: Int32, table: PackedLinear, scale: float, out: Float32) -> None:
    """token_ids [T], table [V, E] -> out [T, E] = table[token_ids] * scale, in float32.

    Raises IndexError for ids outside the vocabulary.
    """
    out[...] = table.widened(token_ids)
    if scale != 1.0:
        out *= np.float32(scale)
