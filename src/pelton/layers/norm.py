"""Normalisation layers."""

from collections.abc import Iterator

from pelton.layers.parameter import Parameter
from pelton.ops import Recorder, Value


class RMSNorm:
    """Root-mean-square normalisation with a weight per dimension."""

    def __init__(self, name: str, size: int, eps: float, out_dtype: str) -> None:
        """`out_dtype`: the target's activation dtype where the output goes into linear layers, else float32."""
        self._weight = Parameter(name, (size,))
        self._eps = eps
        self._out_dtype = out_dtype

    def parameters(self) -> Iterator[Parameter]:
        yield self._weight

    def __call__(self, op: Recorder, x: Value, residual: Value | None = None) -> Value:
        """x [T, E] -> normalised, plus the residual [T, E]."""
        return op.rms_norm(x, self._weight.array, self._eps, residual, self._out_dtype)
