"""The user's own logits processors."""

import numpy as np

from pelton.ops.arrays import Float32
from pelton.ops.logits_hook import LogitsHook


def process_logits(logits: Float32, hook: LogitsHook, processed: Float32) -> None:
    """logits [L, V] -> processed [L, V], a copy of all rows that the hook has changed in place."""
    np.copyto(processed, logits)
    hook.apply(processed)
