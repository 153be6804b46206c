"""Weights in the layout of rows."""

import numpy as np
import pytest

from pelton.ops import PackedLinear, pack_rows
from pelton.ops.arrays import widened

RNG = np.random.default_rng(0)


def test_packing_copies_only_what_is_laid_out_otherwise() -> None:
    array = RNG.standard_normal((3, 4), dtype=np.float32)
    assert pack_rows([array]).array is array
    assert pack_rows([array.T]).array.flags.c_contiguous
    half = array.astype("bfloat16")
    assert pack_rows([half], weight_format="bf16").array is half
    bias = np.zeros(3, np.float32)
    packed = pack_rows([array], bias)
    assert packed.bias is bias
    assert str(packed) == "[3, 4] fp32 + bias"
    assert (packed.shape, packed.num_rows, packed.input_dtype) == ((3, 4), 3, "float32")


def test_parts_are_stacked_and_rounded() -> None:
    parts = [RNG.standard_normal((n, 5), dtype=np.float32) for n in (1, 4, 2)]
    for weight_format, dtype in (("fp32", "float32"), ("bf16", "bfloat16")):
        packed = pack_rows(parts, np.arange(7), weight_format=weight_format)
        assert (packed.format, packed.layout, packed.shape) == (weight_format, "rows", (7, 5))
        assert packed.input_dtype == packed.array.dtype == dtype
        assert packed.bias.dtype == np.float32
        expected = np.concatenate(parts).astype(dtype).astype(np.float32)
        assert packed.widened().dtype == np.float32
        assert np.array_equal(packed.widened(), expected)
    mixed = pack_rows([parts[0].astype("bfloat16"), parts[1]])
    assert np.array_equal(mixed.array[:1], parts[0].astype("bfloat16").astype(np.float32))
    assert np.array_equal(mixed.array[1:], parts[1])


def test_gated_weights_have_two_rows_for_each_output() -> None:
    gate, up = (RNG.standard_normal((6, 5), dtype=np.float32) for _ in range(2))
    packed = pack_rows([gate, up], np.zeros(12, np.float32), weight_format="bf16", gated=True)
    assert (packed.out_features, packed.in_features, packed.num_rows) == (6, 5, 12)
    assert str(packed) == "[12, 5] bf16 gated + bias"
    assert np.array_equal(pack_rows([np.concatenate([gate, up])], weight_format="bf16", gated=True).array, packed.array)


def test_what_cannot_be_one_weight() -> None:
    array = np.zeros((3, 4), np.float32)
    with pytest.raises(ValueError, match="two dimensions"):
        pack_rows([array[0]])
    with pytest.raises(ValueError, match="one number of columns"):
        pack_rows([array, np.zeros((3, 5), np.float32)])
    with pytest.raises(ValueError, match=r"one element for each of 3 outputs, got shape \(4,\)"):
        pack_rows([array], np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="even number of rows, got 3"):
        pack_rows([array], gated=True)


def test_panels_are_for_native_kernels() -> None:
    packed = PackedLinear("fp32", "panels", np.zeros(48 * 4, np.float32), (3, 4))
    with pytest.raises(AssertionError, match="reads weights in rows, got panels"):
        packed.widened()


def test_widening_is_exact() -> None:
    every = np.arange(2**16, dtype=np.uint16).view("bfloat16")
    assert np.array_equal(widened(every), every.astype(np.float32), equal_nan=True)
    wide = np.zeros(3, np.float32)
    assert widened(wide) is wide
    with pytest.raises(AssertionError, match="float64"):
        widened(np.zeros(3))
