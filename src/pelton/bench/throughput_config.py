"""Flags of `pelton bench throughput`, beside those of its dataset."""

from dataclasses import dataclass

from pelton.checks import check_flag, check_integer
from pelton.config.options import option
from pelton.sampling_params import MAX_CHOICES


@dataclass(frozen=True)
class ThroughputConfig:
    """How the requests of a dataset are run."""

    n: int = option(1, "Outputs per request; with several, tokens are drawn at temperature 1, else they are greedy.")
    num_warmups: int = option(
        1, "The first so many requests run before, and are not timed; the prefix cache forgets them."
    )
    disable_detokenize: bool = option(False, "Make no text of the tokens.", action="store_true")

    def __post_init__(self) -> None:
        check_integer("n", self.n, low=1, high=MAX_CHOICES)
        check_integer("num_warmups", self.num_warmups, low=0)
        check_flag("disable_detokenize", self.disable_detokenize)
