"""Log probabilities of the sampled and of the most likely tokens."""

import numpy as np

from pelton.ops.arrays import Float32, Int32


def logprobs(
    logits: Float32,
    token_ids: Int32,
    num_logprobs: Int32,
    max_logprobs: int,
    sampled_logprob: Float32,
    rank: Int32,
    top_ids: Int32,
    top_logprobs: Float32,
) -> None:
    """Log-softmax of the raw logits [L, V], for rows whose num_logprobs is not -1; other rows get zeros.

    For token_ids [L]: sampled_logprob [L] and rank [L], 1 plus the number of likelier tokens. The
    num_logprobs [L] most likely tokens, the lower id first among equals: top_ids and top_logprobs
    [L, max_logprobs], padded with zeros.
    """
    for output in (sampled_logprob, rank, top_ids, top_logprobs):
        output.fill(0)
    for row in np.flatnonzero(num_logprobs >= 0).tolist():
        scores, count, token_id = logits[row], int(num_logprobs[row]), token_ids[row]
        assert count <= max_logprobs, f"row {row} asks for {count} log probabilities of {max_logprobs}"
        highest = scores.max()
        log_total = highest + np.log(np.exp(scores - highest).sum(dtype=np.float64))
        sampled_logprob[row] = scores[token_id] - log_total
        rank[row] = 1 + np.count_nonzero(scores > scores[token_id])
        if count > 0:
            ids = _most_likely(scores, count)
            top_ids[row, :count] = ids
            top_logprobs[row, :count] = scores[ids] - log_total


def _most_likely(scores: Float32, count: int) -> Int32:
    """The ids of the `count` highest scores, in order."""
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    ids = np.flatnonzero(scores >= least)
    return ids[np.argsort(-scores[ids], kind="stable")[:count]].astype(np.int32)
