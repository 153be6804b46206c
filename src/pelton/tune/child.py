"""`python -m pelton.tune.child FD MODULE ARGUMENTS`: run a module, until FD ends.

FD is the read end of a pipe whose only write end the parent holds: whatever ends the parent ends this process, at once
and without cleaning up; so do the processes that a server has started, by themselves.
"""

import runpy
import sys

from pelton.parent_watch import watch_parent

if __name__ == "__main__":
    watch_parent(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
