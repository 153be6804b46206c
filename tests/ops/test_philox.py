import numpy as np
import pytest

from pelton.ops.reference.philox import Purpose, philox4x32, uniform

# Known answers published with the Random123 library.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> np.ndarray:
    return np.array([[int(word, 16)] for word in text.split()], np.uint64)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    assert np.array_equal(philox4x32(words(counter), words(key)), words(expected))


def test_uniform_is_a_pure_function_of_its_row() -> None:
    rng = np.random.default_rng(0)
    seed = rng.integers(0, 2**64, 50, dtype=np.uint64)
    choice, position = rng.integers(0, 2**31, (2, 50), dtype=np.int32)
    draws = uniform(seed, choice, position, Purpose.SAMPLE)
    for i in range(50):
        row = slice(i, i + 1)
        assert uniform(seed[row], choice[row], position[row], Purpose.SAMPLE)[0] == draws[i]
    assert len(set(draws.tolist())) == 50


def test_uniform_covers_the_unit_interval() -> None:
    zeros, positions = np.zeros(40_000, np.int32), np.arange(40_000, dtype=np.int32)
    draws = uniform(np.full(40_000, 2**63 + 5, np.uint64), zeros, positions, Purpose.SAMPLE)
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    counts = np.histogram(draws, 20, (0.0, 1.0))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 0.02
