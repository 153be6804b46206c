"""An executor of engine cores that does what its test wishes, while it runs: `tests.support.moody_executors`."""

import os
import time
from pathlib import Path

from pelton.config import EngineArgs
from pelton.loader import Checkpoint
from tests.support.serving_executors import POLL_SECONDS, InstantExecutor, InstantWorker

BACKEND = ("--distributed-executor-backend", "tests.support.moody_executors:MoodyExecutor")


class _MoodyWorker(InstantWorker):
    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        super().__init__(args, checkpoint)
        self._folder = Path(os.environ["FAKE_EXECUTOR_FOLDER"])
        self._seconds = float(os.environ.get("FAKE_STEP_SECONDS", "0.01"))
        self._wait_while("load")

    def begin_step(self) -> None:
        self._wait_while("hang")
        if (self._folder / "fail").exists():
            raise RuntimeError("the model broke")
        time.sleep(self._seconds)

    def _wait_while(self, name: str) -> None:
        while (self._folder / name).exists():
            (self._folder / f"{name}s").touch()
            time.sleep(POLL_SECONDS)


class MoodyExecutor(InstantExecutor):
    """While a file exists in the folder `FAKE_EXECUTOR_FOLDER`: `load`, the model does not get ready; `hang`, a step
    does not end; `fail`, it raises an exception. While it waits for that, there is a file `loads` or `hangs`. Other
    steps take `FAKE_STEP_SECONDS`."""

    worker_class = _MoodyWorker
