"""How steps are computed."""

from dataclasses import dataclass

from pelton.checks import check_flag, check_integer
from pelton.config.options import option

MAX_THREADS = 1024
"""More is a slip of the pen: threads beyond the machine's cores only wait for each other."""


@dataclass(frozen=True)
class ExecutionConfig:
    """Threads, and means to look into a step."""

    num_threads: int | None = option(
        None,
        "Threads of the kernels. Default: one per physical core that this process may really use "
        "(affinity and control-group quotas included).",
        type=int,
    )
    enforce_eager: bool = option(
        False, "Run the program launch by launch instead of in one native call; same results, for debugging."
    )
    check_nan: bool = option(
        False, "With enforce_eager: stop a step at the first value that is NaN, and name it; for debugging, slow."
    )

    def __post_init__(self) -> None:
        if self.num_threads is not None:
            check_integer("num_threads", self.num_threads, low=1, high=MAX_THREADS)
        check_flag("enforce_eager", self.enforce_eager)
        check_flag("check_nan", self.check_nan)
        if self.check_nan and not self.enforce_eager:
            raise ValueError("check_nan is True, but only the launch-by-launch mode can check; set enforce_eager too")
