"""Weights of linear layers, in the form that the operators read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pelton.ops.arrays import BFLOAT16, Activations, AnyArray, Float32, widened

WeightLayout = Literal["rows", "panels"]
FORMAT_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
"""Per format: of the weight's elements, and of the activations that it is multiplied with."""


@dataclass(frozen=True, eq=False)
class PackedLinear:
    """A weight [num_rows, in_features] and perhaps a bias [num_rows], packed once at load."""

    format: str
    """`fp32` or `bf16`; see `FORMAT_DTYPES`."""
    layout: WeightLayout
    """`rows`: `array` is [num_rows, in_features], C-ordered, in the format's dtype; what the references read.
    `panels`: the order of native kernels, which nothing else looks into."""
    array: AnyArray
    shape: tuple[int, int]
    """out_features and in_features."""
    bias: Float32 | None = None
    gated: bool = False
    """Whether this is two weights, with twice as many rows as out_features: those of the gate, then those of up."""

    @property
    def out_features(self) -> int:
        """Columns of what `linear`, or `gated_linear` for a gated weight, makes of it."""
        return self.shape[0]

    @property
    def in_features(self) -> int:
        return self.shape[1]

    @property
    def num_rows(self) -> int:
        return self.out_features * (2 if self.gated else 1)

    @property
    def input_dtype(self) -> str:
        """Of the activations that it is multiplied with."""
        return FORMAT_DTYPES[self.format]

    @property
    def rows(self) -> Activations:
        """[num_rows, in_features] in the weight's own dtype; only of the layout `rows`."""
        assert self.layout == "rows", f"this reads weights in rows, got {self.layout}"
        return self.array

    def widened(self) -> Float32:
        """[num_rows, in_features] in float32; only of the layout `rows`."""
        return widened(self.rows)

    def __str__(self) -> str:
        bias = "" if self.bias is None else " + bias"
        gated = " gated" if self.gated else ""
        return f"[{self.num_rows}, {self.in_features}] {self.format}{gated}{bias}"


def pack_rows(
    parts: Sequence[AnyArray], bias: AnyArray | None = None, *, weight_format: str = "fp32", gated: bool = False
) -> PackedLinear:
    """Pack weights [N_i, K], stacked along their rows, and a bias [N] for all of them, in the layout of rows.

    Parts are float32 or bfloat16; a single one that is laid out as the format says is not copied. Of a gated weight,
    the first half of all rows is the gate's. Raises ValueError for other shapes.
    """
    num_rows, in_features = check_parts(parts, bias, gated=gated)
    packed_bias = None if bias is None else np.require(bias, np.float32, ["C", "A"])
    dtype = np.dtype(FORMAT_DTYPES[weight_format])
    if len(parts) == 1:
        array = np.require(parts[0], dtype, ["C", "A"])
    else:
        array = np.empty((num_rows, in_features), dtype)
        stop = 0
        for part in parts:
            start, stop = stop, stop + len(part)
            array[start:stop] = widened(part) if part.dtype == BFLOAT16 else part
    shape = (num_rows // 2 if gated else num_rows, in_features)
    return PackedLinear(weight_format, "rows", array, shape, packed_bias, gated)


def check_parts(parts: Sequence[AnyArray], bias: AnyArray | None, *, gated: bool) -> tuple[int, int]:
    """-> number of rows of all parts, and in_features. Raises ValueError for what cannot be packed as one weight."""
    for part in parts:
        if part.ndim != 2:
            raise ValueError(f"a linear weight has two dimensions, got shape {part.shape}")
    if len({part.shape[1] for part in parts}) != 1:
        raise ValueError(f"parts of one weight have one number of columns, got {[part.shape for part in parts]}")
    num_rows = sum(len(part) for part in parts)
    if gated and num_rows % 2:
        raise ValueError(f"a gated weight has an even number of rows, got {num_rows}")
    if bias is not None and bias.shape != (num_rows,):
        raise ValueError(f"a bias has one element for each of {num_rows} outputs, got shape {bias.shape}")
    return num_rows, parts[0].shape[1]
