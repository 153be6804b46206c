"""The first half of a gated feed-forward layer."""

import numpy as np

from pelton.ops.arrays import Activations
from pelton.ops.packed_linear import PackedLinear
from pelton.ops.reference.activations import Activation, gated
from pelton.ops.reference.matmul import multiply


def gated_linear(x: Activations, weight: PackedLinear, activation: Activation, out: Activations) -> None:
    """x [T, K], gated weight [2I, K] -> out [T, I] = activation(x @ gate.T + bias) * (x @ up.T + bias).

    All is computed in float32, and rounded to x's dtype at the end.
    """
    gate_up = np.empty((len(x), weight.num_rows), np.float32)
    multiply(x, weight, gate_up)
    activated = np.empty(out.shape, np.float32)
    gated(gate_up, activation, activated)
    out[...] = activated
