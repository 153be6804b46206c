"""Linear layers."""

from collections.abc import Iterator, Sequence

import numpy as np

from pelton.layers.parameter import Parameter
from pelton.ops import PackedLinear, Recorder, Value, pack_linear


class Linear:
    """A weight made of one or more named parts, stacked along its outputs and packed once all are loaded."""

    def __init__(self, parts: Sequence[tuple[str, int]], in_features: int) -> None:
        """`parts` are names and numbers of output features."""
        self._parts = [Parameter(name, (size, in_features), self._pack) for name, size in parts]
        self._weight: PackedLinear | None = None

    def parameters(self) -> Iterator[Parameter]:
        yield from self._parts

    @property
    def weight(self) -> PackedLinear:
        assert self._weight is not None, f"not loaded: {[p.name for p in self._parts if not p.is_loaded]}"
        return self._weight

    def __call__(self, op: Recorder, x: Value, residual: Value | None = None) -> Value:
        """x [T, K], residual [T, N] -> [T, N]."""
        return op.linear(x, self.weight, residual)

    def _pack(self) -> None:
        if all(part.is_loaded for part in self._parts):
            arrays = [part.take() for part in self._parts]
            self._weight = pack_linear(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))
