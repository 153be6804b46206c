"""How steps are computed."""

from dataclasses import dataclass

from pelton.checks import check_flag, check_integer
from pelton.config.options import option
from pelton.error_text import shown

MAX_THREADS = 1024
"""More is a slip of the pen: threads beyond the machine's cores only wait for each other."""
UNIPROC = "uniproc"
"""The executor whose one worker is in the process of the engine core."""


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

    distributed_executor_backend: str = option(
        UNIPROC,
        "What runs the model: uniproc, in the process of the engine core; or an executor of your own, as "
        "package.module:Class.",
        metavar="{uniproc,MODULE:CLASS}",
    )

    def __post_init__(self) -> None:
        if self.num_threads is not None:
            check_integer("num_threads", self.num_threads, low=1, high=MAX_THREADS)
        check_flag("enforce_eager", self.enforce_eager)
        check_flag("check_nan", self.check_nan)
        if self.check_nan and not self.enforce_eager:
            raise ValueError("check_nan is True, but only the launch-by-launch mode can check; set enforce_eager too")
        self._check_executor()

    def _check_executor(self) -> None:
        name = self.distributed_executor_backend
        if not isinstance(name, str) or not (name == UNIPROC or ":" in name):
            raise ValueError(
                f"distributed_executor_backend must be {UNIPROC}, or the name of a class as package.module:Class, "
                f"got {shown(name)}"
            )
