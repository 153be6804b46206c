"""A callback on the logits."""

from typing import Protocol

from pelton.ops.arrays import Float32, Int32


class LogitsHook(Protocol):
    """The seam for logits processors in Python: `process_logits` calls it in the middle of a program.

    A native implementation of the operator set must come back to Python there.
    """

    def apply(self, logits: Float32, edit_index: Int32) -> None:
        """Change rows of logits [l, V] in place: row i is edited by entry edit_index[i] of the step's edits.

        Rows of edit_index -1 hold nothing and are left alone. A step's rows come in one or more calls. What it raises
        fails the step.
        """
