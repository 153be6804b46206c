"""Threads that compile, one thing each at a time, and can be given up."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Task(Generic[T]):
    """Something that is to be computed."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.function = function
        self.result: T | None = None
        self.error: BaseException | None = None
        self.is_done = False


class CompilePool(Generic[T]):
    """A few daemon threads, which start when they are needed.

    Nothing can stop a thread that computes. One that is given up is replaced, so that others do not wait for it; its
    result is kept nevertheless. There is a limit to that: beyond it, the others do wait.
    """

    def __init__(self, num_threads: int, *, max_given_up: int = 4) -> None:
        self._num_threads = num_threads
        self._max_given_up = max_given_up
        self._waiting: deque[Task[T]] = deque()
        self._given_up: set[Task[T]] = set()
        self._num_running = 0
        """Threads, without those that were given up."""
        self._changed = threading.Condition()

    def submit(self, function: Callable[[], T]) -> Task[T]:
        task = Task(function)
        with self._changed:
            self._waiting.append(task)
            self._start_threads()
        return task

    def give_up(self, task: Task[T]) -> bool:
        """Do not wait for it any more: leave it out if it has not begun, or else let others have its thread's place.
        Returns whether it has begun."""
        with self._changed:
            if task in self._waiting:
                self._waiting.remove(task)
                return False
            if not task.is_done and task not in self._given_up and len(self._given_up) < self._max_given_up:
                self._given_up.add(task)
                self._num_running -= 1
                self._start_threads()
            return True

    def wait(self, timeout: float) -> None:
        """Until a task is done, for so many seconds at most."""
        with self._changed:
            self._changed.wait(timeout)

    def _start_threads(self) -> None:
        while self._waiting and self._num_running < self._num_threads:
            threading.Thread(target=self._work, args=(self._waiting[0],), name="pelton-grammar", daemon=True).start()
            self._waiting.popleft()
            self._num_running += 1

    def _work(self, task: Task[T] | None) -> None:
        while task is not None:
            try:
                task.result = task.function()
            except BaseException as error:
                # For whoever asked; panics of libraries in Rust are no Exception.
                task.error = error
            with self._changed:
                task.is_done = True
                self._changed.notify_all()
                task = self._next(task)

    def _next(self, done: Task[T]) -> Task[T] | None:
        """What the thread does next; None: it ends."""
        if done in self._given_up:
            self._given_up.remove(done)  # another has its place
            return None
        if self._waiting:
            return self._waiting.popleft()
        self._num_running -= 1
        return None
