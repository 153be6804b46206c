"""Feed-forward layers."""

from collections.abc import Iterator

from pelton.layers.linear import Linear
from pelton.layers.parameter import Parameter
from pelton.ops import Recorder, Value


class GatedMLP:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, name: str, *, hidden_size: int, intermediate_size: int) -> None:
        parts = [(f"{name}.gate", intermediate_size), (f"{name}.up", intermediate_size)]
        self._gate_up = Linear(parts, hidden_size)
        self._down = Linear([(f"{name}.down", hidden_size)], intermediate_size)

    def parameters(self) -> Iterator[Parameter]:
        yield from self._gate_up.parameters()
        yield from self._down.parameters()

    def __call__(self, op: Recorder, x: Value, residual: Value) -> Value:
        """x and residual [T, E] -> residual plus the layer's output [T, E]."""
        return self._down(op, op.gated_activation(self._gate_up(op, x)), residual)
