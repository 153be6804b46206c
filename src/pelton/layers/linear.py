"""Linear layers."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from pelton.layers.parameter import Parameter, WeightPart
from pelton.layers.target import Target
from pelton.ops import PackedLinear, Recorder, Value
from pelton.ops.backend import LinearPacker
from pelton.ops.packed_linear import Rows


class LinearWeight:
    """A weight made of one or more named parts, stacked along its outputs and packed as they are loaded."""

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
        self.format = target.format_of([name for name, _ in parts])
        self._parts = []
        num_rows = 0
        for name, size in parts:
            on_rows = partial(self._add, num_rows)
            self._parts.append(WeightPart(name, (size, in_features), self.format, on_rows))
            num_rows += size
        self._biases = [Parameter(f"{name}.bias", (size,), self._finish) for name, size in parts] if bias else []
        self._shape = num_rows, in_features
        self._num_rows_left = num_rows
        self._target = target
        self._gated = gated
        self._packer: LinearPacker | None = None
        self._packed: PackedLinear | None = None

    def parameters(self) -> Iterator[Parameter]:
        yield from self._parts
        yield from self._biases

    @property
    def packed(self) -> PackedLinear:
        assert self._packed is not None, f"not loaded: {[p.name for p in self.parameters() if not p.is_loaded]}"
        return self._packed

    def _add(self, first_row: int, row: int, rows: Rows) -> None:
        """Rows from number `row` of the part that begins at `first_row`."""
        if self._packer is None:
            self._packer = self._target.backend.linear_packer(
                *self._shape, weight_format=self.format, gated=self._gated
            )
        self._packer.add(first_row + row, rows)
        self._num_rows_left -= len(rows)
        self._finish()

    def _finish(self) -> None:
        if self._num_rows_left == 0 and all(bias.is_loaded for bias in self._biases):
            assert self._packer is not None
            biases = [bias.take() for bias in self._biases]
            self._packed = self._packer.finish(np.concatenate(biases) if biases else None)
            self._packer = None


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
