"""The user's own logits processors."""

import numpy as np

from pelton.ops.arrays import Float32, Int32
from pelton.ops.logits_hook import LogitsHook


def process_logits(logits: Float32, rows: Int32, hook: LogitsHook, processed: Float32) -> None:
    """logits [L, V] -> processed [C, V]: row e is logits row rows[e]; the hook has changed all of them in place."""
    np.take(logits, rows, axis=0, out=processed)
    hook.apply(processed)
