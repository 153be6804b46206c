"""What a request's parameters change in its logits: mask, biases, penalties."""

import numpy as np

from pelton.ops.arrays import AnyArray, Float32, Int32, UInt32

_LARGEST = np.finfo(np.float32).max


def edit_logits(
    logits: Float32,
    edit_index: Int32,
    mask_index: Int32,
    masks: UInt32,
    bias_start: Int32,
    bias_ids: Int32,
    bias: Float32,
    penalty_start: Int32,
    penalty_ids: Int32,
    penalty_counts: Int32,
    penalties: Float32,
    edited: Float32,
) -> None:
    """logits [L, V] -> edited [L, V]: row l is logits row l, changed by edit e = edit_index[l] of C in three stages.

    Rows of edit_index -1 are undefined, neither read nor written.

    1. Mask mask_index[e] of masks [M, W], or none if the index is -1. Bit v % 32 of word v // 32 says whether token v
       is allowed; others become -inf. W = ceil(V / 32).
    2. Bias: entries bias_start[e] to bias_start[e + 1] of bias_ids and bias [B] are added; all are finite.
    3. Penalties: entries penalty_start[e] to penalty_start[e + 1] of penalty_ids and penalty_counts [P] are the tokens
       that prompt and output have, and how often the output has each. penalties[e] is (repetition, frequency,
       presence). Positive logits are divided by repetition, others multiplied by it (Keskar et al. 2019,
       arXiv:1909.05858); then frequency * count is subtracted, and then, if count > 0, presence (OpenAI's API).

    Ids are distinct within a row. What leaves the float32 range, by the bias or by one of the penalties, becomes the
    largest number of its sign; -inf stays -inf. If the source row has a NaN or +inf, the whole edited row is NaN: a
    mask must not hide that the model is broken.
    """
    bias_bounds, penalty_bounds = bias_start.tolist(), penalty_start.tolist()
    with np.errstate(over="ignore", invalid="ignore"):
        for row in np.flatnonzero(edit_index >= 0).tolist():
            e, source, target = int(edit_index[row]), logits[row], edited[row]
            if not source.max() < np.inf:
                target.fill(np.nan)
                continue
            np.copyto(target, source)
            if mask_index[e] >= 0:
                _keep_allowed(target, masks[mask_index[e]])
            biased = slice(bias_bounds[e], bias_bounds[e + 1])
            _add_bias(target, bias_ids[biased], bias[biased])
            penalized = slice(penalty_bounds[e], penalty_bounds[e + 1])
            _penalize(target, penalty_ids[penalized], penalty_counts[penalized], penalties[e])


def _keep_allowed(scores: Float32, mask: UInt32) -> None:
    words = mask.astype("<u4", copy=False)
    allowed = np.unpackbits(words.view(np.uint8), count=len(scores), bitorder="little")
    scores[allowed == 0] = -np.inf


def _add_bias(scores: Float32, ids: Int32, bias: Float32) -> None:
    before = scores[ids]
    scores[ids] = np.where(np.isneginf(before), -np.inf, _saturated(before + bias))


def _penalize(scores: Float32, ids: Int32, counts: Int32, penalties: Float32) -> None:
    repetition, frequency, presence = penalties
    before = scores[ids]
    after = _saturated(np.where(before > 0.0, before / repetition, before * repetition))
    after = _saturated(after - frequency * counts.astype(np.float32))
    after = _saturated(after - np.where(counts > 0, presence, np.float32(0.0)))
    scores[ids] = np.where(np.isneginf(before), -np.inf, after)


def _saturated(values: AnyArray) -> AnyArray:
    return np.clip(values, -_LARGEST, _LARGEST)
