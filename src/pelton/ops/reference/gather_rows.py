"""Selected rows of a matrix."""

import numpy as np

from pelton.ops.arrays import Float32, Int32


def gather_rows(x: Float32, rows: Int32, out: Float32) -> None:
    """x [T, E], rows [L] -> out [L, E]. Raises IndexError for rows that do not exist."""
    np.take(x, rows, axis=0, out=out)
