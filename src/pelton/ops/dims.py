"""Named dimensions: sizes that change from step to step."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dim:
    """A named size, plus a constant; `R + 1` has one more entry than there are requests."""

    name: str
    plus: int = 0

    def __add__(self, count: int) -> "Dim":
        return Dim(self.name, self.plus + count)

    @property
    def base(self) -> "Dim":
        """The dimension whose size a step gives."""
        return Dim(self.name)

    def __str__(self) -> str:
        return f"{self.name}+{self.plus}" if self.plus else self.name


Shape = tuple[Dim | int, ...]

T = Dim("T")
"""Tokens of the step."""
R = Dim("R")
"""Requests of the step."""
R1 = R + 1
"""Bounds between requests; its size follows from that of R."""
L = Dim("L")
"""Rows whose logits are needed."""
C = Dim("C")
"""Edits: what is done to the logits of one row before sampling."""
C1 = C + 1
"""Bounds between edits."""
M = Dim("M")
"""Masks of allowed tokens."""
B = Dim("B")
"""Entries of the edits' biases."""
P = Dim("P")
"""Entries of the edits' penalties."""


def mask_words(vocab_size: int) -> int:
    """Width of a mask over the vocabulary, with a bit for every token: words of 32 bits."""
    return -(-vocab_size // 32)


def concrete(shape: Shape, sizes: Mapping[Dim, int]) -> tuple[int, ...]:
    """The shape with every named dimension replaced by its size."""
    return tuple(n if isinstance(n, int) else sizes[n.base] + n.plus for n in shape)


def shape_str(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"
