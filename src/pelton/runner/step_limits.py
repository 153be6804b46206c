"""The largest step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StepLimits:
    """What a model's programs must hold."""

    max_num_tokens: int
    max_num_seqs: int
    max_model_len: int
    max_blocks: int
    """Width of the block tables."""
