"""Rows of integers that quantized weights are multiplied with."""

import numpy as np
import pytest

from pelton.ops import pack_rows
from pelton.ops.reference import linear
from pelton.ops.reference.quantized_inputs import quantize_inputs

RNG = np.random.default_rng(0)


def rounded(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32).astype("bfloat16")


@pytest.mark.parametrize("size", [32, 64])
def test_groups_are_divided_by_their_largest_magnitude(size: int) -> None:
    x = rounded(5, 150).astype(np.float32)
    values, scales, sums = quantize_inputs(x, size)
    num_groups = -(-150 // size)
    assert values.shape == (num_groups, 5, size)
    for g in range(num_groups):
        group = x[:, g * size : (g + 1) * size]
        amax = np.abs(group).max(axis=1)
        assert np.array_equal(scales[g], amax / np.float32(127))
        assert np.array_equal(np.abs(values[g]).max(axis=1), np.full(5, 127))
        assert np.abs(values[g][:, : group.shape[1]] * scales[g][:, None] - group).max() <= scales[g].max() * 0.5001
        assert not values[g][:, group.shape[1] :].any(), "padding"
        assert np.array_equal(sums[g], values[g].sum(axis=1))


def test_halves_are_rounded_to_even() -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, :5] = [127, 0.5, 1.5, 2.5, -0.5]
    assert quantize_inputs(x, 64).values[0, 0, :5].tolist() == [127, 0, 2, 2, 0]


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_stays_alone(weight_format: str, value: float) -> None:
    weight = pack_rows([RNG.standard_normal((20, 100), dtype=np.float32)], weight_format=weight_format)
    x = rounded(3, 100)
    expected = run(x, weight)
    x[1, 70] = value
    y = run(x, weight)
    assert np.isnan(y[1]).all()
    assert np.array_equal(y[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_groups_of_almost_nothing_count_as_zeros(weight_format: str) -> None:
    weight = pack_rows([RNG.standard_normal((20, 100), dtype=np.float32)], weight_format=weight_format)
    x = np.zeros((2, 100), "bfloat16")
    x[1] = 1e-39
    assert not run(x, weight).any()


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_rows_do_not_depend_on_each_other(weight_format: str) -> None:
    weight = pack_rows([RNG.standard_normal((90, 100), dtype=np.float32)], weight_format=weight_format)
    x = rounded(9, 100)
    together = run(x, weight)
    for row in range(9):
        assert np.array_equal(run(x[row : row + 1], weight)[0], together[row])


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_products_are_close_to_those_of_floats(weight_format: str) -> None:
    array = RNG.standard_normal((30, 256), dtype=np.float32)
    x = rounded(10, 256)
    exact = x.astype(np.float64) @ array.T.astype(np.float64)
    off = np.abs(run(x, pack_rows([array], weight_format=weight_format)) - exact).std() / exact.std()
    assert off < {"int8": 0.012, "int4": 0.11}[weight_format]
    assert off > {"int8": 0.002, "int4": 0.02}[weight_format]


def run(x: np.ndarray, weight) -> np.ndarray:
    y = np.empty((len(x), weight.out_features), np.float32)
    linear(x, weight, None, y)
    return y
