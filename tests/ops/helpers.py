"""Weights that random programs are built from."""

import numpy as np

from pelton.ops import pack_rows

_RNG = np.random.default_rng(0)
WEIGHTS = [
    pack_rows([_RNG.standard_normal((n, k), dtype=np.float32) * np.float32(0.4)])
    for n, k in ((4, 4), (9, 4), (4, 9), (9, 9), (30, 9), (4, 30))
]
