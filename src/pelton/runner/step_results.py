"""What a model makes of a step."""

from dataclasses import dataclass, field

import numpy as np

from pelton.core.messages import TokenLogprobs
from pelton.ops.arrays import Float32, Int32


@dataclass(slots=True)
class LogprobRows:
    """Log probabilities of N tokens; meaningful where they were asked for."""

    logprob: Float32
    """[N] of the token itself; NaN where the logits are broken."""
    rank: Int32
    """[N] rank of the token, 1 for the most likely."""
    top_token_ids: Int32
    """[N, most log probabilities]"""
    top_logprobs: Float32
    """[N, most log probabilities]; -inf for tokens that were ruled out."""

    def entry(self, index: int, token_id: int, num_top: int) -> TokenLogprobs:
        """The token's own, then those of the most likely tokens; there may be fewer than `num_top` candidates."""
        top = self.top_logprobs[index, :num_top]
        num = int(np.count_nonzero(top > -np.inf)) if num_top else 0
        return TokenLogprobs(
            token_ids=[token_id, *self.top_token_ids[index, :num].tolist()],
            logprobs=[float(self.logprob[index]), *top[:num].tolist()],
            rank=int(self.rank[index]),
        )


@dataclass(slots=True)
class StepResults:
    """Sampled tokens, and log probabilities of these and of prompt tokens."""

    token_ids: Int32
    """[L] sampled tokens; INVALID_LOGITS or NO_CANDIDATE where there is none."""
    logprobs: LogprobRows | None = None
    """Of the L sampled tokens; None if no row asks for any."""
    prompt_logprobs: LogprobRows | None = None
    """Of the prompt tokens to score; None if there are none."""
    processor_errors: dict[int, str] = field(default_factory=dict)
    """Logits rows whose own processors failed, with the reason."""
