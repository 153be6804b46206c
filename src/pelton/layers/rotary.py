"""Tables of the rotary position embedding (Su et al. 2021, arXiv:2104.09864)."""

from functools import cached_property

import numpy as np

from pelton.ops.arrays import Float32


class Rotary:
    """cos and sin [num_positions, head_size / 2], shared by the layers of one theta.

    They are computed when a program first reads them: by then the weights are loaded, so a configuration that
    does not fit them has been refused.
    """

    def __init__(self, *, head_size: int, theta: float, num_positions: int) -> None:
        self._head_size = head_size
        self._theta = theta
        self._num_positions = num_positions

    @property
    def cos(self) -> Float32:
        return self._tables[0]

    @property
    def sin(self) -> Float32:
        return self._tables[1]

    @cached_property
    def _tables(self) -> tuple[Float32, Float32]:
        # Angles are products of float32 numbers, as Hugging Face computes them: at far positions a more
        # exact angle would be a different one. The power is rounded once from float64, to the same bits.
        exponents = np.arange(0, self._head_size, 2, dtype=np.float32) / np.float32(self._head_size)
        inverse_frequencies = np.float32(1.0) / (self._theta ** exponents.astype(np.float64)).astype(np.float32)
        angles = np.arange(self._num_positions, dtype=np.float32)[:, None] * inverse_frequencies
        return np.cos(angles), np.sin(angles)
