"""A callback on the logits."""

from typing import Protocol

from pelton.ops.arrays import Float32


class LogitsHook(Protocol):
    """The seam for logits processors in Python: `process_logits` calls it in the middle of a program.

    An implementation of the operator set that runs programs natively must split the program there.
    """

    def apply(self, logits: Float32) -> None:
        """Change the rows of logits [C, V] in place. What it raises fails the step."""
