"""`python -m pelton.tune.child FD MODULE ARGUMENTS`: run a module, until FD ends.

FD is the read end of a pipe whose only write end the parent holds: whatever ends the parent ends this process, at once
and without cleaning up; so do the processes that a server has started, by themselves. It is what
`pelton.engine.parent_watch` does, without the time that it takes to import the engine.
"""

import os
import runpy
import sys
import threading


def _exit_at_end(fd: int) -> None:
    try:
        while os.read(fd, 1024):
            pass
    finally:
        os._exit(1)


if __name__ == "__main__":
    life_line = int(sys.argv[1])
    os.set_inheritable(life_line, False)
    threading.Thread(target=_exit_at_end, args=(life_line,), daemon=True).start()
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
