"""Linear layers."""

from collections.abc import Iterator, Sequence

import numpy as np

from pelton.layers.parameter import Parameter
from pelton.layers.target import Target
from pelton.ops import PackedLinear, Recorder, Value


class LinearWeight:
    """A weight made of one or more named parts, stacked along its outputs and packed once all are loaded."""

    def __init__(
        self,
        parts: Sequence[tuple[str, int]],
        in_features: int,
        target: Target,
        *,
        bias: bool = False,
        gated: bool = False,
    ) -> None:
        """`parts` are names and numbers of output features; with `bias`, each part has one, called NAME.bias.

        `gated`: the parts are a gate and what it opens, for `gated_linear`.
        """
        self._parts = [Parameter(name, (size, in_features), self._pack, target.weight_format) for name, size in parts]
        self._biases = [Parameter(f"{name}.bias", (size,), self._pack) for name, size in parts] if bias else []
        self._target = target
        self._gated = gated
        self._packed: PackedLinear | None = None

    def parameters(self) -> Iterator[Parameter]:
        yield from self._parts
        yield from self._biases

    @property
    def packed(self) -> PackedLinear:
        assert self._packed is not None, f"not loaded: {[p.name for p in self.parameters() if not p.is_loaded]}"
        return self._packed

    def _pack(self) -> None:
        if all(part.is_loaded for part in self.parameters()):
            parts, biases = ([part.take() for part in parts] for parts in (self._parts, self._biases))
            self._packed = self._target.backend.pack_linear(
                parts,
                np.concatenate(biases) if biases else None,
                weight_format=self._target.weight_format,
                gated=self._gated,
            )


class Linear:
    """x @ weight.T, plus the bias if there is one, plus the residual."""

    def __init__(
        self, parts: Sequence[tuple[str, int]], in_features: int, target: Target, *, bias: bool = False
    ) -> None:
        """See `LinearWeight`."""
        self.weight = LinearWeight(parts, in_features, target, bias=bias)

    def parameters(self) -> Iterator[Parameter]:
        yield from self.weight.parameters()

    def __call__(self, op: Recorder, x: Value, residual: Value | None = None) -> Value:
        """x [T, K], residual [T, N] -> [T, N]."""
        return op.linear(x, self.weight.packed, residual)
