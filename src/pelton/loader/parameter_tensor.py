"""A model's parameter, as its checkpoint stores it."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pelton.loader.stored_tensor import StoredTensor
from pelton.ops.arrays import Float32
from pelton.ops.packed_linear import Int4Rows, Rows

_Rows = TypeVar("_Rows", Float32, Int4Rows)


@dataclass(frozen=True)
class ParameterTensor:
    """A stored tensor, brought into the form that the model wants."""

    stored: StoredTensor
    num_heads: int | None = None
    """Of a tensor whose rows (elements of a vector) are interleaved in each head: (0, half, 1, half + 1, ...)."""
    is_minus_one: bool = False
    """Whether the weight minus one is stored."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def has_int4(self, weight_format: str) -> bool:
        """Whether a weight of this format gets its rows in four bits, as they are stored."""
        return weight_format == self.stored.weight_format == "int4" and not self.is_minus_one

    def read(self) -> Float32:
        """All of it. Raises ValueError; see `StoredTensor.read`."""
        return self._shifted(self._in_order(self.stored.read(), 0, self.shape[0]))

    def read_rows(self, start: int, stop: int, weight_format: str) -> Rows:
        """Rows of a matrix, for a weight of this format: in four bits if they are stored so, else in float32.

        Raises ValueError; see `StoredTensor.read`.
        """
        first, last = self._whole_heads(start, stop)
        if self.has_int4(weight_format):
            return self._in_order(self.stored.read_int4(first, last), start, stop)
        return self._shifted(self._in_order(self.stored.read(first, last), start, stop))

    def _shifted(self, values: Float32) -> Float32:
        return values + np.float32(1.0) if self.is_minus_one else values

    def _whole_heads(self, start: int, stop: int) -> tuple[int, int]:
        """Rows among which those wanted are stored."""
        if self.num_heads is None:
            return start, stop
        head_size = self.shape[0] // self.num_heads
        return start // head_size * head_size, -(-stop // head_size) * head_size

    def _in_order(self, stored: _Rows, start: int, stop: int) -> _Rows:
        """The rows from `start` to `stop`, of whole heads as they are stored."""
        if self.num_heads is None:
            return stored
        order = deinterleaved(np.arange(start, stop), self.shape[0] // self.num_heads)
        return stored[order - self._whole_heads(start, stop)[0]]


def deinterleaved(rows: NDArray[np.intp], head_size: int) -> NDArray[np.intp]:
    """Rows of a model -> where they are stored if each head has its rows in the order (0, half, 1, half + 1, ...)."""
    half = head_size // 2
    heads, dimensions = np.divmod(rows, head_size)
    stored: NDArray[np.intp] = heads * head_size + dimensions % half * 2 + dimensions // half
    return stored
