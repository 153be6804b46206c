"""Rows of the embedding table."""

import numpy as np

from pelton.ops.arrays import Float32, Int32


def embed(token_ids: Int32, table: Float32, scale: float, out: Float32) -> None:
    """token_ids [T], table [V, E] -> out [T, E] = table[token_ids] * scale.

    Raises IndexError for ids outside the vocabulary.
    """
    np.take(table, token_ids, axis=0, out=out)
    if scale != 1.0:
        out *= np.float32(scale)
