"""The tokens that one request's penalties look at."""

from collections.abc import Sequence

import numpy as np

from pelton.ops.arrays import Int32


class TokenCounts:
    """Every distinct token of a prompt and its output, with its number of occurrences in the output."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        distinct = dict.fromkeys(prompt_ids)
        self._index_of = {token_id: index for index, token_id in enumerate(distinct)}
        self._num_prompt_ids = len(distinct)
        self._ids = np.zeros(max(64, 2 * len(distinct)), np.int32)
        self._counts = np.zeros_like(self._ids)
        self._ids[: len(distinct)] = list(distinct)
        self._output: list[int] = []
        """The output tokens that are counted, in order."""

    def at(self, output_ids: Int32) -> tuple[Int32, Int32]:
        """With exactly this output: distinct ids [N], those of the prompt first, and counts [N].

        The arrays are valid until the next call. That goes on from this output, or back from it: the next output must
        be like this one up to its own last token, or to where this one ends, whichever comes first.
        """
        output = self._output
        while output and (len(output) > len(output_ids) or output[-1] != output_ids[len(output) - 1]):
            self._remove(output.pop())
        for token_id in output_ids[len(output) :].tolist():
            self._add(token_id)
            output.append(token_id)
        num = len(self._index_of)
        return self._ids[:num], self._counts[:num]

    def _add(self, token_id: int) -> None:
        index = self._index_of.get(token_id)
        if index is None:
            index = self._index_of[token_id] = len(self._index_of)
            if index == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[index] = token_id
        self._counts[index] += 1

    def _remove(self, token_id: int) -> None:
        """Take back the last token. What came after its first occurrence has gone already, so it is last among the ids
        if this was the only one."""
        index = self._index_of[token_id]
        self._counts[index] -= 1
        if self._counts[index] == 0 and index >= self._num_prompt_ids:
            del self._index_of[token_id]
