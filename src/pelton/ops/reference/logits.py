"""The head: logits of every token, and the most likely one."""

import numpy as np

from pelton.ops.arrays import Activations, Float32, Int32
from pelton.ops.packed_linear import PackedLinear
from pelton.ops.reference.best_ids import find_best
from pelton.ops.reference.matmul import multiply


def logits(
    x: Activations,
    weight: PackedLinear,
    softcap: float | None,
    is_wanted: Int32,
    logits: Float32,
    best_ids: Int32,
) -> None:
    """x [L, E], weight [V, E] -> logits [L, V] = x @ weight.T, best_ids [L].

    With a soft cap (Gemma Team 2024, arXiv:2408.00118), a logit becomes softcap * tanh(logit / softcap). best_ids are
    those of the capped logits: the lowest id of the highest one, or INVALID_LOGITS, or NO_CANDIDATE. Only rows whose
    is_wanted [L] is not 0 need logits: in other rows they are undefined, for an implementation may spare the writes.
    """
    with np.errstate(invalid="ignore"):  # best_ids tell
        multiply(x, weight, logits)
    if softcap is not None:
        np.divide(logits, np.float32(softcap), out=logits)
        np.tanh(logits, out=logits)
        logits *= np.float32(softcap)
    best_ids[:] = find_best(logits)
