"""Selected rows of a matrix."""

import numpy as np

from pelton.ops.arrays import Activations, Int32


def gather_rows(x: Activations, rows: Int32, out: Activations) -> None:
    """x [T, E], rows [L] -> out [L, E]. Raises IndexError for rows that do not exist."""
    np.take(x, rows, axis=0, out=out)
