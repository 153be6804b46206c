"""The sampler: one token per row of logits."""

import numpy as np

from pelton.ops.arrays import Float32, Int32, UInt64
from pelton.ops.reference.philox import Purpose, uniform


def sample(
    logits: Float32,
    temperature: Float32,
    top_k: Int32,
    top_p: Float32,
    seed: UInt64,
    choice: Int32,
    position: Int32,
    out: Int32,
) -> None:
    """logits [L, V], one parameter of each kind per row [L] -> out [L], token ids.

    Temperature 0 means greedy: the most likely token, on ties the lowest id. top_k of 0, -1 or at least V
    and top_p of 1 mean all tokens. `position` is that of the token to be sampled. Each row is computed on its
    own.
    """
    greedy = temperature == 0.0
    if greedy.all():
        np.argmax(logits, axis=-1, out=out)
        return
    draws = uniform(seed, choice, position, Purpose.SAMPLE)
    for row, is_greedy in enumerate(greedy.tolist()):
        if is_greedy:
            out[row] = logits[row].argmax()
        else:
            k, p = int(top_k[row]), float(top_p[row])
            out[row] = _sample_row(logits[row], float(temperature[row]), k, p, float(draws[row]))


def _sample_row(logits: Float32, temperature: float, top_k: int, top_p: float, draw: float) -> int:
    # 1. Top-k: from here on, only candidates, in order of id. Tokens as likely as the k-th stay.
    ids = None
    if 0 < top_k < len(logits):
        kth = np.partition(logits, len(logits) - top_k)[len(logits) - top_k]
        ids = np.flatnonzero(logits >= kth)
        logits = logits[ids]

    # 2. Temperature. The best token keeps 0; others at worst become -inf.
    scores = logits - logits.max()
    with np.errstate(over="ignore"):
        scores /= temperature

    # 3. Softmax, up to its constant factor.
    weights = np.exp(scores, out=scores)

    # 4. Top-p.
    if top_p < 1.0:
        _rule_out_unlikely(weights, top_p)

    # 5. Invert the cumulative distribution over ids. The target is kept strictly below the total, so that
    #    the token found has a weight whatever the product rounds to.
    cumulative = np.cumsum(weights, dtype=np.float64)
    target = min(draw * cumulative[-1], np.nextafter(cumulative[-1], 0.0))
    index = int(np.searchsorted(cumulative, target, side="right"))
    return index if ids is None else int(ids[index])


def _rule_out_unlikely(weights: Float32, top_p: float) -> None:
    """Zero all but the smallest set of most likely tokens with mass top_p; of equals, keep the lowest ids."""
    descending = np.sort(weights)[::-1]
    mass = np.cumsum(descending, dtype=np.float64)
    count = min(int(np.searchsorted(mass, top_p * mass[-1])), len(mass) - 1) + 1
    least = descending[count - 1]
    num_equal = count - int(np.count_nonzero(weights > least))
    ruled_out = np.flatnonzero(weights == least)[num_equal:]
    weights[weights < least] = 0.0
    weights[ruled_out] = 0.0
