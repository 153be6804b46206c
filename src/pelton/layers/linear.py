"""Linear layers."""

from collections.abc import Iterator, Sequence

import numpy as np

from pelton.layers.parameter import Parameter
from pelton.ops import PackedLinear, Recorder, Value, pack_linear
from pelton.ops.arrays import Float32


class Linear:
    """A weight made of one or more named parts, stacked along its outputs and packed once all are loaded."""

    def __init__(self, parts: Sequence[tuple[str, int]], in_features: int, *, bias: bool = False) -> None:
        """`parts` are names and numbers of output features; with `bias`, each part has one, called NAME.bias."""
        self._parts = [Parameter(name, (size, in_features), self._pack) for name, size in parts]
        self._biases = [Parameter(f"{name}.bias", (size,), self._pack) for name, size in parts] if bias else []
        self._weight: PackedLinear | None = None

    def parameters(self) -> Iterator[Parameter]:
        yield from self._parts
        yield from self._biases

    @property
    def weight(self) -> PackedLinear:
        assert self._weight is not None, f"not loaded: {[p.name for p in self.parameters() if not p.is_loaded]}"
        return self._weight

    def __call__(self, op: Recorder, x: Value, residual: Value | None = None) -> Value:
        """x [T, K], residual [T, N] -> [T, N]."""
        return op.linear(x, self.weight, residual)

    def _pack(self) -> None:
        if all(part.is_loaded for part in self.parameters()):
            self._weight = pack_linear(_stack(self._parts), _stack(self._biases) if self._biases else None)


def _stack(parts: Sequence[Parameter]) -> Float32:
    arrays = [part.take() for part in parts]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
