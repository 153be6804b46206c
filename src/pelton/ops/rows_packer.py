"""Packing in the layout of rows."""

from collections.abc import Callable, Sequence

import numpy as np

from pelton.ops.arrays import BFLOAT16, AnyArray, Float32, widened
from pelton.ops.backend import LinearPacker
from pelton.ops.packed_linear import FORMATS, Int4Rows, PackedLinear, Rows, check_parts
from pelton.ops.quantize import quantize_int4, quantize_int8


class RowsPacker:
    """Packs one weight; see `LinearPacker`. Rows may be bfloat16 too."""

    def __init__(self, num_rows: int, in_features: int, weight_format: str, *, gated: bool) -> None:
        self._format = weight_format
        self._gated = gated
        self._array = np.zeros((num_rows, in_features), FORMATS[weight_format].element_dtype)
        self._scales: AnyArray | None = None
        self._minimums: AnyArray | None = None
        num_groups = -(-in_features // FORMATS[weight_format].group_size)
        if weight_format == "int8":
            self._scales = np.zeros((num_rows, num_groups), np.float32)
        elif weight_format == "int4":
            self._scales, self._minimums = np.zeros((2, num_rows, num_groups), np.float16)

    def add(self, first_row: int, rows: Rows | AnyArray) -> None:
        where = slice(first_row, first_row + len(rows))
        if self._format == "int4":
            groups = rows if isinstance(rows, Int4Rows) else quantize_int4(_widened(rows))
            assert self._scales is not None
            assert self._minimums is not None
            self._array[where] = groups.values
            self._scales[where] = groups.scales
            self._minimums[where] = groups.minimums
        elif self._format == "int8":
            assert self._scales is not None
            self._array[where], self._scales[where] = quantize_int8(_widened(rows))
        else:
            self._array[where] = _widened(rows)

    def finish(self, bias: Float32 | None) -> PackedLinear:
        num_rows, in_features = self._array.shape
        shape = num_rows // 2 if self._gated else num_rows, in_features
        packed_bias = None if bias is None else np.require(bias, np.float32, ["C", "A"])
        return PackedLinear(
            self._format, "rows", self._array, shape, packed_bias, self._gated, self._scales, self._minimums
        )


def pack_rows(
    parts: Sequence[Rows | AnyArray],
    bias: AnyArray | None = None,
    *,
    weight_format: str = "fp32",
    gated: bool = False,
) -> PackedLinear:
    """`pack_parts` in the layout of rows. Parts are float32, bfloat16, or in four bits."""
    return pack_parts(RowsPacker, parts, bias, weight_format=weight_format, gated=gated)


def pack_parts(
    make_packer: Callable[..., LinearPacker],
    parts: Sequence[Rows | AnyArray],
    bias: AnyArray | None,
    *,
    weight_format: str,
    gated: bool,
) -> PackedLinear:
    """Pack weights [N_i, K], stacked along their rows, and a bias [N] for all of them.

    `make_packer` is some `Backend.linear_packer`. Of a gated weight, the first half of all rows is the gate's.
    Raises ValueError for shapes that do not fit each other.
    """
    num_rows, in_features = check_parts(parts, bias, gated=gated)
    packer = make_packer(num_rows, in_features, weight_format=weight_format, gated=gated)
    first_row = 0
    for part in parts:
        packer.add(first_row, part)
        first_row += len(part)
    return packer.finish(bias)


def _widened(rows: Rows | AnyArray) -> Float32:
    assert not isinstance(rows, Int4Rows), "rows in four bits are for int4"
    return widened(rows) if rows.dtype == BFLOAT16 else np.asarray(rows, np.float32)
