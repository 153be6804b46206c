"""Flags of `pelton bench roofline`."""

from dataclasses import dataclass

from pelton.checks import check_integer
from pelton.config.options import check_positive, option


@dataclass(frozen=True)
class RooflineConfig:
    """Which steps are measured, and for how long."""

    batch_sizes: tuple[int, ...] = option(
        (1, 2, 4, 8, 16, 32, 64, 128, 256),
        "Numbers of requests that get a token in the same step.",
        nargs="+",
        type=int,
        metavar="N",
    )
    context: int = option(256, "Tokens of every request that are in the KV cache already.")
    seconds: float = option(
        2.0, "Time for which each batch size is measured, in turns with the others; at least five steps."
    )

    def __post_init__(self) -> None:
        if not self.batch_sizes:
            raise ValueError("batch_sizes must have at least one number")
        for size in self.batch_sizes:
            check_integer("batch_sizes", size, low=1)
        if len(set(self.batch_sizes)) != len(self.batch_sizes):
            raise ValueError(f"batch_sizes must differ from each other, got {', '.join(map(str, self.batch_sizes))}")
        check_integer("context", self.context, low=0)
        check_positive(self, "seconds")
