"""The tokens that one request's penalties look at."""

from collections.abc import Sequence

import numpy as np

from pelton.ops.arrays import Int32


class TokenCounts:
    """Every distinct token of a prompt and its output, with its number of occurrences in the output."""

    def __init__(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        distinct = dict.fromkeys(prompt_ids)
        self._index_of = {token_id: index for index, token_id in enumerate(distinct)}
        self._ids = np.zeros(max(64, 2 * len(distinct)), np.int32)
        self._counts = np.zeros_like(self._ids)
        self._ids[: len(distinct)] = list(distinct)
        for token_id in output_ids:
            self.add(token_id)

    def __len__(self) -> int:
        return len(self._index_of)

    def add(self, token_id: int) -> None:
        """One more output token."""
        index = self._index_of.get(token_id)
        if index is None:
            index = self._index_of[token_id] = len(self._index_of)
            if index == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[index] = token_id
        self._counts[index] += 1

    @property
    def ids(self) -> Int32:
        """[number of distinct tokens]; a view that is valid until the next `add`, like `counts`."""
        return self._ids[: len(self._index_of)]

    @property
    def counts(self) -> Int32:
        return self._counts[: len(self._index_of)]
