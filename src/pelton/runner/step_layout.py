"""How a step's tokens and logits rows lie, whatever their positions are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pelton.ops.arrays import Int32, Int64


@dataclass(frozen=True, slots=True, eq=False)
class StepLayout:
    """R requests, T tokens, L logits rows. While requests decode it is the same from step to step, so it is kept."""

    rows: Int64
    """[R] row of the batch of each request."""
    counts: Int64
    """[R] tokens of each."""
    query_start: Int32
    """[R + 1] where each one's tokens begin."""
    token_rows: Int64
    """[T] row of the batch of each token."""
    owners: Int64
    """[T] the request of each token, from 0 to R - 1."""
    offsets: Int64
    """[T] which of its request's tokens each is, from 0 on."""
    logits_rows: Int32
    """[L] the last tokens of each request, as many as it needs logits of."""
    sampled_rows: Int64
    """[L] row of the batch of each."""

    @classmethod
    def of(cls, rows: Sequence[int], num_tokens: Sequence[int], num_logits: Sequence[int]) -> "StepLayout":
        """Requests by their rows of the batch, and how many tokens and logits each has in the step."""
        row_array, counts = np.array(rows, np.int64), np.array(num_tokens, np.int64)
        query_start = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=query_start[1:])
        owners = np.repeat(np.arange(len(rows)), counts)
        num_rows = np.array(num_logits, np.int64)
        last_row = query_start[1:] - np.cumsum(num_rows)
        return cls(
            rows=row_array,
            counts=counts,
            query_start=query_start.astype(np.int32),
            token_rows=row_array[owners],
            owners=owners,
            offsets=np.arange(query_start[-1]) - query_start[owners],
            logits_rows=(np.arange(num_rows.sum()) + np.repeat(last_row, num_rows)).astype(np.int32),
            sampled_rows=np.repeat(row_array, num_rows),
        )
