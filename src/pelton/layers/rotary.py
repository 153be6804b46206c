"""Tables of the rotary position embedding (Su et al. 2021, arXiv:2104.09864)."""

import numpy as np

from pelton.ops.arrays import Float32


class Rotary:
    """cos and sin [num_positions, head_size / 2], shared by the layers of one theta."""

    def __init__(self, *, head_size: int, theta: float, num_positions: int) -> None:
        # Angles are products of float32 numbers, as Hugging Face computes them: at far positions a more
        # exact angle would be a different one. The power is rounded once from float64, to the same bits.
        exponents = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
        inverse_frequencies = np.float32(1.0) / (theta ** exponents.astype(np.float64)).astype(np.float32)
        angles = np.arange(num_positions, dtype=np.float32)[:, None] * inverse_frequencies
        self.cos: Float32 = np.cos(angles)
        self.sin: Float32 = np.sin(angles)
