"""Weights that a checkpoint provides."""

import math
from collections.abc import Callable

import numpy as np

from pelton.ops.arrays import AnyArray, Float32
from pelton.ops.packed_linear import FORMAT_DTYPES


class Parameter:
    """One named tensor of the model, loaded once."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        on_load: Callable[[], None] | None = None,
        weight_format: str = "fp32",
    ) -> None:
        self.name = name
        self.shape = shape
        self.format = weight_format
        """How its owner keeps it once it is loaded: `fp32` or `bf16`."""
        self.is_loaded = False
        self._array: Float32 | None = None
        self._on_load = on_load

    @property
    def num_bytes(self) -> int:
        """What its owner keeps of it, the padding of packed weights aside."""
        return math.prod(self.shape) * np.dtype(FORMAT_DTYPES[self.format]).itemsize

    def load(self, array: AnyArray) -> None:
        """Take a float32 array, without a copy where its memory is laid out in order.

        Raises ValueError for another shape or dtype, and for a second load.
        """
        if self.is_loaded:
            raise ValueError(f"{self.name} is loaded twice")
        if array.shape != self.shape:
            raise ValueError(f"{self.name} must have shape {list(self.shape)}, got {list(array.shape)}")
        if array.dtype != np.float32:
            raise ValueError(f"{self.name} must be float32, got {array.dtype}")
        self._array = np.require(array, requirements=["C", "A"])
        self.is_loaded = True
        # Called once and let go: it belongs to the layer that owns this parameter, and a cycle would keep the
        # weights of a model that nobody uses any more until Python looks for cycles.
        on_load, self._on_load = self._on_load, None
        if on_load is not None:
            on_load()

    @property
    def array(self) -> Float32:
        assert self._array is not None, f"{self.name} is {'packed' if self.is_loaded else 'not loaded'}"
        return self._array

    def take(self) -> Float32:
        """The array, which the parameter then gives up: its owner keeps it in another form."""
        array, self._array = self.array, None
        return array
