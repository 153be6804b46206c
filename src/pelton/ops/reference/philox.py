"""Random numbers without state: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as
1, 2, 3", doi:10.1145/2063384.2063405).
"""

from enum import IntEnum

import numpy as np

from pelton.ops.arrays import Float64, Int32, UInt64

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_NUM_ROUNDS = 10


class Purpose(IntEnum):
    """What a random number is drawn for: draws of different purposes are independent."""

    SAMPLE = 0


def philox4x32(counter: UInt64, key: UInt64) -> UInt64:
    """counter [4, ...] and key [2, ...] -> [4, ...]; every entry is a 32-bit word in a uint64."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return np.stack([c0, c1, c2, c3])


def uniform(seed: UInt64, choice: Int32, position: Int32, purpose: Purpose) -> Float64:
    """One number in [0, 1) per row, a pure function of its arguments (each [L]), with 53 random bits."""
    counter = np.zeros((4, len(seed)), np.uint64)
    counter[0], counter[1], counter[2] = position, choice, purpose
    words = philox4x32(counter, np.stack([seed & _LOW, seed >> _HALF]))
    bits: UInt64 = (words[0] >> np.uint64(5)) << np.uint64(26) | words[1] >> np.uint64(6)
    return np.ldexp(bits.astype(np.float64), -53)
