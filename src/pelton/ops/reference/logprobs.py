"""Log probabilities of given tokens, and of the most likely ones."""

import numpy as np

from pelton.ops.arrays import Float32, Int32
from pelton.ops.reference.kth_highest import kth_highest


def logprobs(
    logits: Float32,
    token_ids: Int32,
    num_logprobs: Int32,
    max_logprobs: int,
    normalize: bool,
    sampled_logprob: Float32,
    rank: Int32,
    top_ids: Int32,
    top_logprobs: Float32,
) -> None:
    """Log-softmax of logits [L, V], or the logits themselves if they are not to be normalized.

    Only for rows whose num_logprobs [L] is not -1, and whose token id is not negative; other rows get zeros. For
    token_ids [L]: sampled_logprob [L] and rank [L], 1 plus the number of likelier tokens. The num_logprobs most likely
    tokens, the lower id first among equals: top_ids and top_logprobs [L, max_logprobs], padded with zeros. Tokens of
    logit -inf count as the least likely. A row with NaN or +inf, or with nothing but -inf, gets NaN as sampled_logprob
    and zeros elsewhere.
    """
    for output in (sampled_logprob, rank, top_ids, top_logprobs):
        output.fill(0)
    with np.errstate(over="ignore", under="ignore"):
        for row in np.flatnonzero((num_logprobs >= 0) & (token_ids >= 0)).tolist():
            scores, count, token_id = logits[row], int(num_logprobs[row]), token_ids[row]
            assert count <= max_logprobs, f"row {row} asks for {count} log probabilities of {max_logprobs}"
            highest = scores.max()
            if not np.isfinite(highest):
                sampled_logprob[row] = np.nan
                continue
            log_total = _log_total(scores, highest) if normalize else np.float64(0.0)
            sampled_logprob[row] = scores[token_id] - log_total
            rank[row] = 1 + np.count_nonzero(scores > scores[token_id])
            if count > 0:
                ids = _most_likely(scores, count)
                top_ids[row, :count] = ids
                top_logprobs[row, :count] = scores[ids] - log_total


def _log_total(scores: Float32, highest: np.float32) -> np.float64:
    log_total: np.float64 = highest + np.log(np.exp(scores - highest).sum(dtype=np.float64))
    return log_total


def _most_likely(scores: Float32, count: int) -> Int32:
    """The ids of the `count` highest scores, in order."""
    ids = np.flatnonzero(scores >= kth_highest(scores, count))
    return ids[np.argsort(-scores[ids], kind="stable")[:count]].astype(np.int32)
