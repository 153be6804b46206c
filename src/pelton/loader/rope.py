"""What both formats' rotary embeddings have in common."""

import math

from pelton.config import LinearScaling, RopeScaling, YarnScaling
from pelton.loader.config_table import Fields


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """YaRN's factor on cosine and sine for contexts that are `factor` times as long."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def context_length(fields: Fields) -> int:
    """The context that the rotary embedding makes of `max_position_embeddings`."""
    scaling: RopeScaling | None = fields["rope"].scaling
    if isinstance(scaling, LinearScaling):
        return int(fields["max_position_embeddings"] * scaling.factor)
    return gemma3_context_length(fields)


def gemma3_context_length(fields: Fields) -> int:
    """The same for Gemma 3, whose `max_position_embeddings` includes linear scaling."""
    scaling: RopeScaling | None = fields["rope"].scaling
    positions = int(fields["max_position_embeddings"])
    if isinstance(scaling, YarnScaling):
        return max(positions, int(scaling.original_max_position_embeddings * scaling.factor))
    return positions
