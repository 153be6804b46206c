"""A child process ends as soon as its parent has, however the parent ended."""

import os
import shutil
import threading


def watch_parent(fd: int, runtime_dir: str | None = None) -> None:
    """Watch the read end of a pipe whose only write end the parent holds, from a thread of its own.

    At its end of file the folder `runtime_dir` is removed and this process exits with 1, at once and without any
    cleaning up. Raises OSError if `fd` is not an open file.
    """
    os.set_inheritable(fd, False)
    threading.Thread(target=_exit_at_end, args=(fd, runtime_dir), name="parent-watch", daemon=True).start()


def _exit_at_end(fd: int, runtime_dir: str | None) -> None:
    try:
        while os.read(fd, 1024):
            pass
    finally:  # a pipe that cannot be read any more is as good as a dead parent
        if runtime_dir is not None:
            shutil.rmtree(runtime_dir, ignore_errors=True)
        os._exit(1)
