"""Checks constraints in processes of their own, whose time and memory are limited.

Whether a constraint can be kept is found out by libraries that nothing can stop from within the process, and that a few
hundred characters can keep busy for ever.
"""

import signal
import socket
from threading import BoundedSemaphore, Lock

import msgspec

from pelton.engine.child_process import ChildProcess
from pelton.engine.errors import EngineDeadError
from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.check_process import Checked, receive_frame, send_frame
from pelton.structured_outputs_params import StructuredOutputsParams

NUM_PROCESSES = 2
MAX_MEMORY = 1 << 30
_END_SECONDS = 10.0
"""How long a process may take to end whose socket has ended."""
_PATIENCE = 60.0
"""Seconds of waiting for an answer, beside ten times those of processor time: others may keep the processors."""


class ConstraintChecker:
    """Does what `grammar.registry.resolve` does; its processes start when they are needed, one after the other."""

    def __init__(self, max_seconds: float, max_memory: int = MAX_MEMORY) -> None:
        """`max_seconds`: processor time of one check. `max_memory`: bytes beside what a process has at first."""
        self._max_seconds, self._max_memory = max_seconds, max_memory
        self._places = BoundedSemaphore(NUM_PROCESSES)
        self._lock = Lock()
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()
        self._is_shut_down = False

    def resolve(self, params: StructuredOutputsParams) -> StructuredOutputsParams:
        """Waits for the answer. Raises ValueError as `resolve`, and for a constraint whose check takes too much;
        EngineDeadError at the end of all, and if no process can be had."""
        with self._places:
            checked = self._ask(self._take_idle(), params) or self._ask(self._start(), params)
        if checked is None:
            raise EngineDeadError("the process that checks constraints has ended, and so has another one")
        if checked.error:
            raise UnsupportedGrammarError(checked.error)
        closed = checked.disable_additional_properties
        return msgspec.structs.replace(params, backend=checked.backend, disable_additional_properties=closed)

    def shutdown(self) -> None:
        """End the processes, and with them what waits for an answer."""
        with self._lock:
            self._is_shut_down = True
            idle, self._idle = self._idle, []
            for child in self._all.difference(idle):
                child.kill()
        for child in idle:
            self._forget(child)

    def _ask(self, child: "_Child | None", params: StructuredOutputsParams) -> Checked | None:
        """None: there is no such process, or it has ended for no reason that is known."""
        if child is None:
            return None
        try:
            checked = child.check(params)
        except (EOFError, OSError):
            problem = child.end()
            self._forget(child)
            self._check_is_up()
            return Checked(error=f"{params.kind}: {problem}") if problem else None
        except BaseException:
            self._forget(child)
            raise
        with self._lock:
            self._idle.append(child)
        if self._is_shut_down:
            self.shutdown()
        return checked

    def _take_idle(self) -> "_Child | None":
        self._check_is_up()
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _start(self) -> "_Child":
        self._check_is_up()
        child = _Child(self._max_seconds, self._max_memory)
        with self._lock:
            self._all.add(child)
        if self._is_shut_down:
            child.kill()
        return child

    def _check_is_up(self) -> None:
        if self._is_shut_down:
            raise EngineDeadError("the server is shutting down; send the request to another one")

    def _forget(self, child: "_Child") -> None:
        with self._lock:
            self._all.discard(child)
        child.destroy()


class _Child:
    def __init__(self, max_seconds: float, max_memory: int) -> None:
        self._max_seconds = max_seconds
        self._connection, theirs = socket.socketpair()
        with theirs:
            fd, limits = theirs.fileno(), ["--max-seconds", str(max_seconds), "--max-memory", str(max_memory)]
            self._process = ChildProcess("pelton.grammar.check_process", ["--fd", str(fd), *limits], pass_fds=[fd])
        self._connection.settimeout(_PATIENCE + 10 * max_seconds)

    def check(self, params: StructuredOutputsParams) -> Checked:
        """Raises EOFError or OSError if the process ends meanwhile, or takes for ever."""
        send_frame(self._connection, msgspec.msgpack.encode(params))
        return msgspec.msgpack.decode(receive_frame(self._connection), type=Checked)

    def end(self) -> str:
        """What was too much, if the process has ended for that; empty if it has not."""
        self._process.wait(_END_SECONDS)
        match self._process.end_signal:
            case signal.SIGPROF:
                return f"to check it takes more than {self._max_seconds:g} seconds of processor time; simplify it"
            case signal.SIGABRT:
                return "to check it takes too much memory; simplify it"
        return ""

    def kill(self) -> None:
        self._process.kill()

    def destroy(self) -> None:
        self._process.destroy()
        self._connection.close()
