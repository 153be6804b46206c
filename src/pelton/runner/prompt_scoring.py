"""Which prompt tokens a step gives log probabilities for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pelton.core.messages import NewRequest
from pelton.ops.arrays import Int32


@dataclass(slots=True)
class ScoringInputs:
    """Prompt tokens to score, N in all, each through the logits of the token before it."""

    logits_rows: Int32
    """[N] tokens of the step whose logits are needed."""
    token_ids: Int32
    """[N] the token that follows each."""
    num_logprobs: Int32
    """[N] most likely tokens to report."""
    counts: dict[str, int]
    """How many belong to each request, in this order."""


@dataclass(slots=True)
class _Progress:
    """A request that wants log probabilities of its prompt."""

    row: int
    num_logprobs: int
    next: int
    """The first position whose logits have not been used yet."""
    end: int
    """The last prompt token predicts no other."""


class PromptScoring:
    """The requests of a batch whose prompts are still to be scored."""

    def __init__(self) -> None:
        self._requests: dict[str, _Progress] = {}

    def add(self, row: int, request: NewRequest) -> None:
        """Take note of a new request, if it wants anything."""
        params = request.message.sampling_params
        end = len(request.message.prompt_token_ids) - 1
        if params.prompt_logprobs is not None and request.num_prompt_logprobs < end:
            self._requests[request.message.request_id] = _Progress(
                row, params.prompt_logprobs, request.num_prompt_logprobs, end
            )

    def drop(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def inputs(
        self, request_ids: Sequence[str], starts: Sequence[int], query_start: Int32, token_ids: Int32
    ) -> ScoringInputs | None:
        """Of a step that computes, of each request, positions from `starts` on; None if nobody wants any.

        `query_start` is that of the step; `token_ids` are the tokens of all rows of the batch.
        """
        if not self._requests:
            return None
        rows, targets, wanted = [], [], []
        counts: dict[str, int] = {}
        for index, (request_id, start) in enumerate(zip(request_ids, starts, strict=True)):
            progress = self._requests.get(request_id)
            if progress is None:
                continue
            first, end = query_start[index : index + 2].tolist()
            stop = min(start + end - first, progress.end)
            num = stop - progress.next
            if num > 0:
                assert progress.next >= start, "positions are computed in order"
                rows.append(np.arange(progress.next, stop) - start + first)
                targets.append(token_ids[progress.row, progress.next + 1 : stop + 1])
                wanted.append(np.full(num, progress.num_logprobs))
                counts[request_id] = num
                progress.next = stop
            if progress.next == progress.end:
                del self._requests[request_id]
        if not counts:
            return None
        return ScoringInputs(
            np.concatenate(rows).astype(np.int32),
            np.concatenate(targets),
            np.concatenate(wanted).astype(np.int32),
            counts,
        )
