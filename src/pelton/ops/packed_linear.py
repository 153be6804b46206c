"""Weights of linear layers, in the form that the operators read."""

from dataclasses import dataclass

import numpy as np

from pelton.ops.arrays import AnyArray, Float32


@dataclass(frozen=True, eq=False)
class PackedLinear:
    """A weight [out_features, in_features], packed once at load."""

    format: str
    """How the weight is stored: `fp32` is a C-ordered float32 array."""
    array: Float32

    @property
    def out_features(self) -> int:
        return int(self.array.shape[0])

    @property
    def in_features(self) -> int:
        return int(self.array.shape[1])

    def __str__(self) -> str:
        return f"[{self.out_features}, {self.in_features}] {self.format}"


def pack_linear(array: AnyArray) -> PackedLinear:
    """Pack a weight [N, K]. An array that is already in the packed layout is used as it is, not copied.

    Raises ValueError unless it has two dimensions.
    """
    if array.ndim != 2:
        raise ValueError(f"a linear weight has two dimensions, got shape {array.shape}")
    return PackedLinear("fp32", np.require(array, np.float32, ["C", "A"]))
