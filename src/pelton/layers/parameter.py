"""Weights that a checkpoint provides."""

import math
from collections.abc import Callable

import numpy as np

from pelton.ops.arrays import Float32
from pelton.ops.packed_linear import Int4Rows, Rows, packed_bytes


class Parameter:
    """One named tensor of the model, loaded once: here a small one, which is kept in float32."""

    format = "fp32"
    """How it is kept once it is loaded; one of `FORMATS`."""

    def __init__(self, name: str, shape: tuple[int, ...], on_load: Callable[[], None] | None = None) -> None:
        self.name = name
        self.shape = shape
        self.is_loaded = False
        self._array: Float32 | None = None
        self._on_load = on_load

    @property
    def num_bytes(self) -> int:
        """What its owner keeps of it, the padding of packed weights aside."""
        return 4 * math.prod(self.shape)

    def load(self, rows: Rows) -> None:
        """Take a float32 array, without a copy where its memory is laid out in order.

        Raises ValueError for another shape or dtype, and for a second load.
        """
        if self.is_loaded:
            raise ValueError(f"{self.name} is loaded twice")
        if rows.shape != self.shape:
            raise ValueError(f"{self.name} must have shape {list(self.shape)}, got {list(rows.shape)}")
        self._array = np.require(_float32(self.name, rows), requirements=["C", "A"])
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


class WeightPart(Parameter):
    """A matrix that is a weight of linear layers, or a part of one. It is passed on in pieces, and not kept here."""

    def __init__(
        self, name: str, shape: tuple[int, int], weight_format: str, on_rows: Callable[[int, Rows], None]
    ) -> None:
        """`on_rows` takes the number of the first row, and rows."""
        super().__init__(name, shape)
        self.format = weight_format
        self._shape = shape
        self._on_rows: Callable[[int, Rows], None] | None = on_rows
        self._num_loaded = 0

    @property
    def num_bytes(self) -> int:
        return packed_bytes(self._shape, self.format)

    def load(self, rows: Rows) -> None:
        """Take the next rows, in float32, or in four bits if that is the format.

        Raises ValueError for more rows than there are, or of another length, and for another dtype.
        """
        if self.is_loaded:
            raise ValueError(f"{self.name} is loaded twice")
        left = self.shape[0] - self._num_loaded
        if len(rows.shape) != 2 or rows.shape[1] != self.shape[1] or not 0 < len(rows) <= left:
            raise ValueError(
                f"{self.name} must have shape {list(self.shape)}, got {list(rows.shape)} for its last {left} rows"
            )
        if not isinstance(rows, Int4Rows):
            _float32(self.name, rows)
        assert self._on_rows is not None
        self._on_rows(self._num_loaded, rows)
        self._num_loaded += len(rows)
        if self._num_loaded == self.shape[0]:
            self.is_loaded = True
            self._on_rows = None  # see `Parameter.load`


def _float32(name: str, rows: Rows) -> Float32:
    if isinstance(rows, Int4Rows) or rows.dtype != np.float32:
        got = "four bits" if isinstance(rows, Int4Rows) else rows.dtype
        raise ValueError(f"{name} must be float32, got {got}")
    return rows
