"""Flags of `pelton bench latency`."""

from dataclasses import dataclass

from pelton.checks import check_flag, check_integer
from pelton.config.options import option
from pelton.sampling_params import MAX_CHOICES


@dataclass(frozen=True)
class LatencyConfig:
    """A batch, and how often it is timed."""

    input_len: int = option(32, "Tokens per prompt.", aliases=("--input-tokens",))
    output_len: int = option(128, "Tokens per output.", aliases=("--output-tokens",))
    batch_size: int = option(8, "Requests of a batch.")
    n: int = option(1, "Outputs per request; with several, tokens are drawn at temperature 1, else they are greedy.")
    num_iters_warmup: int = option(3, "Batches that run first and are not timed.")
    num_iters: int = option(10, "Batches that are timed.")
    seed: int = option(0, "Makes the random prompts; those of every batch are new.")
    disable_detokenize: bool = option(False, "Make no text of the tokens.", action="store_true")

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len", "batch_size", "num_iters"):
            check_integer(name, getattr(self, name), low=1)
        check_integer("n", self.n, low=1, high=MAX_CHOICES)
        check_integer("num_iters_warmup", self.num_iters_warmup, low=0)
        check_integer("seed", self.seed, low=0)
        check_flag("disable_detokenize", self.disable_detokenize)
