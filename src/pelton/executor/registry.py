"""From the name of an executor to the executor."""

from pelton.config import EngineArgs
from pelton.config.execution import UNIPROC
from pelton.error_text import described, shown
from pelton.executor.base import Executor
from pelton.executor.uniproc import UniprocExecutor
from pelton.import_names import load_class
from pelton.loader import Checkpoint

_ARGUMENT = "distributed_executor_backend"


def make_executor(args: EngineArgs, checkpoint: Checkpoint, *, progress: bool = False) -> Executor:
    """The executor that `distributed_executor_backend` names, with the model loaded. `progress` shows a bar meanwhile.

    Raises ValueError for a class that cannot be had or made, and for arguments that contradict the model.
    """
    name = args.execution.distributed_executor_backend
    if name == UNIPROC:
        # The models and all that computes them: other executors may do without.
        from pelton.runner import CPUWorker

        return UniprocExecutor(CPUWorker(args, checkpoint, progress=progress))
    executor = load_class(name, Executor, _ARGUMENT)
    try:
        made: Executor = executor(args, checkpoint)
    except Exception as error:  # whatever the class does
        raise ValueError(f"{_ARGUMENT} {shown(name)} cannot be made: {described(error)}") from error
    return made
