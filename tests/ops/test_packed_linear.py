"""Weights in the layout of rows."""

import numpy as np
import pytest

from pelton.ops import PackedLinear, pack_rows
from pelton.ops.arrays import widened
from pelton.ops.packed_linear import FORMATS, Int4Rows, packed_bytes, widest
from pelton.ops.quantize import quantize_int4, quantize_int8

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def test_parts_are_stacked_and_rounded_once() -> None:
    parts = [normal(2, 5), normal(4, 5), normal(1, 5)]
    for weight_format, dtype in (("fp32", "float32"), ("bf16", "bfloat16")):
        packed = pack_rows(parts, np.arange(7), weight_format=weight_format)
        expected = np.concatenate(parts).astype(dtype)
        assert packed.array.dtype == expected.dtype
        assert np.array_equal(widened(packed.array), widened(expected))
        assert packed.bias is not None
        assert packed.bias.dtype == np.float32
        assert (packed.out_features, packed.in_features, packed.input_dtype) == (7, 5, dtype)
    mixed = pack_rows([parts[0].astype("bfloat16"), parts[1].T.copy().T])
    assert np.array_equal(mixed.array, np.concatenate([widened(parts[0].astype("bfloat16")), parts[1]]))
    assert mixed.array.flags.c_contiguous


@pytest.mark.parametrize("weight_format", FORMATS)
def test_a_gated_weight_has_the_rows_of_gate_then_those_of_up(weight_format: str) -> None:
    gate, up = normal(6, 40), normal(6, 40)
    packed = pack_rows([gate, up], np.zeros(12, np.float32), weight_format=weight_format, gated=True)
    assert (packed.shape, packed.num_rows, packed.in_features) == ((6, 40), 12, 40)
    assert str(packed) == f"[12, 40] {weight_format} gated + bias"
    whole = pack_rows([np.concatenate([gate, up])], weight_format=weight_format, gated=True)
    assert np.array_equal(packed.widened(), whole.widened())


def test_what_does_not_fit_is_refused() -> None:
    array = np.zeros((3, 4), np.float32)
    with pytest.raises(ValueError, match=r"two dimensions, got shape \(4,\)"):
        pack_rows([array[0]])
    with pytest.raises(ValueError, match=r"one number of columns, got \[\(3, 4\), \(3, 5\)\]"):
        pack_rows([array, np.zeros((3, 5), np.float32)])
    with pytest.raises(ValueError, match="one element for each of 3 outputs"):
        pack_rows([array], np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="even number of rows, got 3"):
        pack_rows([array], gated=True)


def test_only_rows_are_read_as_such() -> None:
    panels = PackedLinear("fp32", "panels", np.zeros(48, np.float32), (1, 1))
    with pytest.raises(AssertionError, match="reads weights in rows, got panels"):
        _ = panels.rows


@pytest.mark.parametrize("num_columns", [1, 63, 64, 65, 128, 200])
def test_int8_is_within_half_a_step_of_each_group(num_columns: int) -> None:
    rows = normal(50, num_columns) * np.logspace(-20, 20, 50, dtype=np.float32)[:, None]
    values, scales = quantize_int8(rows)
    assert values.dtype == np.int8
    assert scales.shape == (50, -(-num_columns // 64))
    for g, scale in enumerate(scales.T):
        columns = slice(64 * g, 64 * g + 64)
        group, rounded = rows[:, columns], values[:, columns].astype(np.int32)
        assert (np.abs(rounded).max(axis=1) == 127).all()
        assert np.array_equal(scale, np.abs(group).max(axis=1) / np.float32(127))
        off = np.abs(rounded * scale[:, None] - group) / scale[:, None]
        assert off.max() <= 0.5 + 1e-4


@pytest.mark.parametrize("num_columns", [1, 31, 32, 33, 64, 100])
def test_int4_is_within_half_a_step_of_each_group(num_columns: int) -> None:
    rows = normal(50, num_columns) * np.logspace(-2, 2, 50, dtype=np.float32)[:, None]
    quantized = quantize_int4(rows)
    num_groups = -(-num_columns // 32)
    assert quantized.scales.shape == quantized.minimums.shape == (50, num_groups)
    assert quantized.values.shape == rows.shape
    for g in range(num_groups):
        group = rows[:, 32 * g : 32 * g + 32]
        spread = group.max(axis=1) - group.min(axis=1)
        np.testing.assert_allclose(quantized.scales[:, g], spread / 15, rtol=2**-11, atol=2**-25)
        np.testing.assert_allclose(quantized.minimums[:, g], group.min(axis=1), rtol=2**-11, atol=2**-25)
        off = np.abs(quantized.widened()[:, 32 * g : 32 * g + 32] - group)
        rounding = 2**-10 * np.abs(group).max(axis=1)  # of minimum and scale
        assert (off.max(axis=1) <= spread / 30 + rounding).all()


def test_zeros_and_numbers_close_to_them() -> None:
    tiny = np.float32(1e-40)
    rows = np.stack([np.zeros(40), np.full(40, tiny), np.full(40, 2.0**-101)]).astype(np.float32)
    values, scales = quantize_int8(rows)
    assert not values.any()
    assert not scales.any()
    quantized = quantize_int4(rows)
    assert not quantized.values.any()
    assert not quantized.widened().any()
    values, scales = quantize_int8(np.float32([[2.0**-100, 0]]))
    assert values.tolist() == [[127, 0]]
    constant = quantize_int4(np.full((1, 64), -2.5, np.float32))
    assert np.array_equal(constant.widened(), np.full((1, 64), -2.5))


@pytest.mark.parametrize("value", [1e6, -1e5])
def test_int4_refuses_what_float16_cannot_hold(value: float) -> None:
    with pytest.raises(ValueError, match=r"too large for the float16 .* of int4; set quantization to int8 or none"):
        quantize_int4(np.float32([[0, value]]))


def test_four_bits_are_kept() -> None:
    rng = np.random.default_rng(1)
    stored = Int4Rows(
        rng.integers(0, 16, (7, 40), np.uint8),
        rng.standard_normal((7, 2)).astype(np.float16),
        rng.standard_normal((7, 2)).astype(np.float16),
    )
    more = normal(3, 40)
    packed = pack_rows([stored, more], weight_format="int4")
    assert np.array_equal(packed.int4_rows()[:7].values, stored.values)
    assert np.array_equal(packed.widened(slice(0, 7)), stored.widened())
    assert np.array_equal(packed.widened(slice(7, 10)), quantize_int4(more).widened())
    exact = stored.values * np.repeat(stored.scales.astype(np.float64), 32, 1)[:, :40]
    exact += np.repeat(stored.minimums.astype(np.float64), 32, 1)[:, :40]
    assert np.array_equal(stored.widened(), exact.astype(np.float32))
    with pytest.raises(AssertionError, match="are for int4"):
        pack_rows([stored, more], weight_format="int8")


def test_sizes_and_order_of_formats() -> None:
    assert {name: packed_bytes((10, 64), name) for name in FORMATS} == {
        "fp32": 2560,
        "bf16": 1280,
        "int8": 680,
        "int4": 400,
    }
    assert widest(["int4", "int8"]) == "int8"
    assert widest(["int4", "bf16", "int8"]) == "bf16"
