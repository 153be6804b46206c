"""The user's own logits processors."""

from pelton.ops.arrays import Float32, Int32
from pelton.ops.logits_hook import LogitsHook


def process_logits(logits: Float32, edit_index: Int32, hook: LogitsHook, processed: Float32) -> None:
    """logits [L, V], edit_index [L] -> processed [L, V]: rows that are edited, as the hook has changed them in place.

    Rows of edit_index -1 are undefined: they are neither read nor written.
    """
    is_edited = edit_index >= 0
    if is_edited.any():
        processed[is_edited] = logits[is_edited]
    hook.apply(processed, edit_index)
