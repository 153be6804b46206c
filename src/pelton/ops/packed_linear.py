"""Weights of linear layers, in the form that the operators read."""

from dataclasses import dataclass

import numpy as np

from pelton.ops.arrays import AnyArray, Float32


@dataclass(frozen=True, eq=False)
class PackedLinear:
    """A weight [out_features, in_features] and perhaps a bias [out_features], packed once at load."""

    format: str
    """How the weight is stored: `fp32` is a C-ordered float32 array."""
    array: Float32
    bias: Float32 | None = None

    @property
    def out_features(self) -> int:
        return int(self.array.shape[0])

    @property
    def in_features(self) -> int:
        return int(self.array.shape[1])

    def __str__(self) -> str:
        bias = "" if self.bias is None else " + bias"
        return f"[{self.out_features}, {self.in_features}] {self.format}{bias}"


def pack_linear(array: AnyArray, bias: AnyArray | None = None) -> PackedLinear:
    """Pack a weight [N, K] and a bias [N]. Arrays that are already in the packed layout are not copied.

    Raises ValueError for other shapes.
    """
    if array.ndim != 2:
        raise ValueError(f"a linear weight has two dimensions, got shape {array.shape}")
    if bias is not None and bias.shape != array.shape[:1]:
        raise ValueError(f"a bias has one element for each of {array.shape[0]} outputs, got shape {bias.shape}")
    packed_bias = None if bias is None else np.require(bias, np.float32, ["C", "A"])
    return PackedLinear("fp32", np.require(array, np.float32, ["C", "A"]), packed_bias)
