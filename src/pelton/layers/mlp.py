"""Feed-forward layers."""

from collections.abc import Iterator

from pelton.config import DecoderConfig
from pelton.layers.linear import Linear, LinearWeight
from pelton.layers.parameter import Parameter
from pelton.layers.target import Target
from pelton.ops import Activation, Recorder, Value


class GatedMLP:
    """down(activation(gate(x)) * up(x))."""

    def __init__(self, name: str, config: DecoderConfig, target: Target, activation: Activation = "silu") -> None:
        hidden, intermediate, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        parts = [(f"{name}.gate", intermediate), (f"{name}.up", intermediate)]
        self._gate_up = LinearWeight(parts, hidden, target, bias=bias, gated=True)
        self._down = Linear([(f"{name}.down", hidden)], intermediate, target, bias=bias)
        self._activation = activation

    def parameters(self) -> Iterator[Parameter]:
        yield from self._gate_up.parameters()
        yield from self._down.parameters()

    def __call__(self, op: Recorder, x: Value, residual: Value | None = None) -> Value:
        """x [T, E] -> the layer's output, plus the residual [T, E]."""
        return self._down(op, op.gated_linear(x, self._gate_up.packed, self._activation), residual)
