"""Weights of linear layers, in the form that the operators read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pelton.ops.arrays import Activations, AnyArray, Float32, widened

WeightLayout = Literal["rows", "panels"]
Float16 = NDArray[np.float16]
UInt8 = NDArray[np.uint8]
Selection = slice | NDArray[np.int32] | NDArray[np.intp]
"""Of rows."""


@dataclass(frozen=True)
class WeightFormat:
    """How the elements of a weight are stored."""

    input_dtype: str
    """Of the activations that it is multiplied with."""
    element_dtype: str
    """Of the elements in the layout `rows`."""
    bits: int
    """Per element, scales aside."""
    group_size: int = 1
    """Consecutive columns of an input row that are quantized together, for a product of integers; 1: none are."""


FORMATS = {
    "fp32": WeightFormat("float32", "float32", 32),
    "bf16": WeightFormat("bfloat16", "bfloat16", 16),
    "int8": WeightFormat("bfloat16", "int8", 8, 64),
    "int4": WeightFormat("bfloat16", "uint8", 4, 32),
}
"""Every format, the widest first."""


@dataclass(frozen=True, eq=False)
class Int4Rows:
    """Rows in four bits: element k of row n is `scales[n, k // 32] * values[n, k] + minimums[n, k // 32]`."""

    values: UInt8
    """[N, K], from 0 to 15."""
    scales: Float16
    """[N, ceil(K / 32)], finite."""
    minimums: Float16
    """[N, ceil(K / 32)], finite."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Selection) -> "Int4Rows":
        return Int4Rows(self.values[rows], self.scales[rows], self.minimums[rows])

    def widened(self) -> Float32:
        """[N, K] in float32: the product is exact, the sum rounded once."""
        num_columns = self.shape[1]
        scales, minimums = (
            np.repeat(array.astype(np.float32), FORMATS["int4"].group_size, axis=1)[:, :num_columns]
            for array in (self.scales, self.minimums)
        )
        scales *= self.values
        scales += minimums
        return scales


Rows = Float32 | Int4Rows
"""Some rows of a weight that is to be packed."""


@dataclass(frozen=True, eq=False)
class PackedLinear:
    """A weight [num_rows, in_features] and perhaps a bias [num_rows], packed once at load."""

    format: str
    """One of `FORMATS`."""
    layout: WeightLayout
    """`rows`: `array` is [num_rows, in_features], C-ordered, in the format's dtype; what the references read.
    `panels`: the order of native kernels, scales included, which nothing else looks into."""
    array: AnyArray
    shape: tuple[int, int]
    """out_features and in_features."""
    bias: Float32 | None = None
    gated: bool = False
    """Whether this is two weights, with twice as many rows as out_features: those of the gate, then those of up."""
    scales: AnyArray | None = None
    """Of the layout `rows`, for each group of columns: float32 [num_rows, ceil(in_features / 64)] of `int8`, float16
    [num_rows, ceil(in_features / 32)] of `int4`."""
    minimums: Float16 | None = None
    """Of `int4` in the layout `rows`, of the shape of its scales; see `Int4Rows`."""

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
        return FORMATS[self.format].input_dtype

    @property
    def rows(self) -> Activations:
        """[num_rows, in_features] in the weight's own dtype; only of the layout `rows`."""
        assert self.layout == "rows", f"this reads weights in rows, got {self.layout}"
        return self.array

    def int4_rows(self) -> Int4Rows:
        """All rows of an `int4` weight; only of the layout `rows`."""
        assert self.layout == "rows", f"this reads weights in rows, got {self.layout}"
        assert self.scales is not None
        assert self.minimums is not None
        return Int4Rows(self.array, self.scales, self.minimums)

    def widened(self, rows: Selection = slice(None)) -> Float32:
        """[num_rows, in_features] in float32, or some of the rows; only of the layout `rows`."""
        if self.format == "int4":
            return self.int4_rows()[rows].widened()
        if self.format == "int8":
            assert self.scales is not None, f"{self} has no scales"
            wide: Float32 = self.rows[rows].astype(np.float32)
            wide *= np.repeat(self.scales[rows], FORMATS["int8"].group_size, axis=1)[:, : self.in_features]
            return wide
        return widened(self.rows[rows])

    def __str__(self) -> str:
        bias = "" if self.bias is None else " + bias"
        gated = " gated" if self.gated else ""
        return f"[{self.num_rows}, {self.in_features}] {self.format}{gated}{bias}"


def packed_bytes(shape: tuple[int, int], weight_format: str) -> int:
    """What rows [N, K] take in a format, scales included, and the padding of panels left out."""
    num_rows, num_columns = shape
    size = FORMATS[weight_format].group_size
    num_groups = num_rows * -(-num_columns // size)
    if weight_format == "int4":
        return num_groups * (size // 2 + 4)
    scales = 4 * num_groups if weight_format == "int8" else 0
    return num_rows * num_columns * FORMATS[weight_format].bits // 8 + scales


def widest(formats: Sequence[str]) -> str:
    """The one that holds what all of them can."""
    return min(formats, key=list(FORMATS).index)


def check_parts(parts: Sequence[Rows], bias: AnyArray | None, *, gated: bool) -> tuple[int, int]:
    """-> number of rows of all parts, and in_features. Raises ValueError for what cannot be packed as one weight."""
    for part in parts:
        if len(part.shape) != 2:
            raise ValueError(f"a linear weight has two dimensions, got shape {part.shape}")
    if len({part.shape[1] for part in parts}) != 1:
        raise ValueError(f"parts of one weight have one number of columns, got {[part.shape for part in parts]}")
    num_rows = sum(len(part) for part in parts)
    if gated and num_rows % 2:
        raise ValueError(f"a gated weight has an even number of rows, got {num_rows}")
    if bias is not None and bias.shape != (num_rows,):
        raise ValueError(f"a bias has one element for each of {num_rows} outputs, got shape {bias.shape}")
    return num_rows, parts[0].shape[1]
