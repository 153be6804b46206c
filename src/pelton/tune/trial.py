"""One trial: a server with some settings, and the workload on it."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pelton.tune.rate_search import best_load, search_rate
from pelton.tune.serve_flags import Settings, serve_arguments
from pelton.tune.server import ProcessError, RefusedError, ServerProcess
from pelton.tune.space import Space
from pelton.tune.trial_log import COMPLETE, FAILED, SLO_MISSED, Load, Trial
from pelton.tune.workload import Workload, make_load, measure_load

START_SECONDS = 600.0
"""How long a server may take until it is ready."""
_OF_TRIALS = ("--host", "127.0.0.1", "--port", "0", "--enable-admin-endpoints")
"""Flags of every server that is tried: on a port that is free, and its prefix cache is emptied before each load."""


class OutOfTimeError(Exception):
    """The time for the search is over."""


@dataclass(frozen=True)
class Commands:
    """What is run: modules of Python, with their first arguments."""

    serve: Sequence[str] = ("pelton", "serve")
    load: Sequence[str] = ("pelton", "bench", "serve")


PELTON = Commands()


@dataclass(frozen=True)
class TrialRunner:
    """Starts servers, puts the workload on them, and ends them."""

    workload: Workload
    space: Space
    fixed_flags: Sequence[str]
    """Of all servers."""
    request_rate: float | None
    """Of all loads, in requests per second; None: without limit, or sought."""
    is_rate_sought: bool
    folder: Path
    """Of the log. What a trial leaves goes into a folder of its own in it."""
    commands: Commands

    def run(
        self, number: int, settings: Settings, deadline: float, *, best: Trial | None = None, attempt: int = 1
    ) -> Trial:
        """`deadline`: of `time.monotonic()`. `best`: the trial to beat.

        A load is stopped as soon as it is sure to miss the SLO, except for the one of trial 0, to which others are
        compared; where a rate is sought, except for the one without limit. There, a rate at which requests fail is one
        that misses the SLO, as long as the server runs. Servers and loads that fail are trials too. Raises
        OutOfTimeError if it is not done by the deadline, and ValueError if the server refuses the default settings: it
        refuses the model, or a flag that all servers have.
        """
        start = time.monotonic()
        trial = Trial(number, settings, self._command(settings), FAILED, attempt=attempt)
        loads: list[Load] = []
        folder = self.folder / f"trial-{number:03d}"
        try:
            with self._served(settings, folder, deadline) as server:
                trial = replace(trial, server_pid=server.pid, start_seconds=_since(start))
                measure = partial(self._next_load, server, folder, deadline, loads)
                if self.is_rate_sought:
                    best_rate = None if best is None else best.request_rate
                    search_rate(measure, best_rate, best_rate or 0.0)
                elif failure := measure(self.request_rate, number > 0).failure:
                    raise ProcessError(failure)
        except ProcessError as error:
            if number == 0 and isinstance(error, RefusedError):
                raise ValueError(f"the server with default settings: {error}") from None
            if time.monotonic() >= deadline:
                raise OutOfTimeError from None
            trial = replace(trial, message=str(error))
        else:
            trial = replace(trial, state=SLO_MISSED if best_load(loads) is None else COMPLETE)
        chosen = best_load(loads) or min(loads, key=lambda load: self.workload.goal.excess(load.metrics), default=None)
        if chosen is not None:
            rate, file = chosen.request_rate, chosen.result_file
            trial = replace(trial, metrics=chosen.metrics, request_rate=rate, result_file=file)
        return replace(trial, loads=loads, seconds=_since(start))

    def measure_again(self, trial: Trial, request_rate: float | None, name: str, seconds: float, *, draw: int) -> Load:
        """One load with a trial's settings, whose requests are drawn anew. `name`: of the folder.

        Raises ProcessError, and OutOfTimeError if it takes longer.
        """
        deadline, folder = time.monotonic() + seconds, self.folder / name
        stop_early = self.is_rate_sought and request_rate is not None  # then the rate says it all
        with self._served(trial.settings, folder, deadline) as server:
            return self._load(server, folder / "load-1.json", request_rate, deadline, stop_early=stop_early, draw=draw)

    def _command(self, settings: Settings) -> list[str]:
        arguments = serve_arguments(self.workload.model, self.fixed_flags, self.space.given(settings))
        return [*self.commands.serve, *arguments, *_OF_TRIALS]

    @contextmanager
    def _served(self, settings: Settings, folder: Path, deadline: float) -> Iterator[ServerProcess]:
        """A server that is ready."""
        folder.mkdir(exist_ok=True)
        with ServerProcess(self._command(settings), folder / "server.log") as server:
            server.wait_until_ready(min(START_SECONDS, deadline - time.monotonic()))
            yield server

    def _next_load(
        self,
        server: ServerProcess,
        folder: Path,
        deadline: float,
        loads: list[Load],
        request_rate: float | None,
        stop_early: bool,
    ) -> Load:
        """Add one to the loads."""
        result = folder / f"load-{len(loads) + 1}.json"
        loads.append(self._load(server, result, request_rate, deadline, stop_early=stop_early))
        return loads[-1]

    def _load(
        self,
        server: ServerProcess,
        result: Path,
        request_rate: float | None,
        deadline: float,
        *,
        stop_early: bool,
        draw: int = 0,
    ) -> Load:
        server.forget_prompts()
        assert server.port is not None, "it is ready"
        start = time.monotonic()
        seconds = deadline - start
        if seconds <= 0:
            raise OutOfTimeError
        arguments = self.workload.arguments(
            server.port, result, request_rate, seconds, stop_early=stop_early, draw=draw
        )
        try:
            content = measure_load([*self.commands.load, *arguments], result, self.workload.goal, seconds)
        except ProcessError:
            server.check_runs()  # then that is what to tell
            raise
        name = str(result.relative_to(self.folder))
        load = make_load(content, self.workload.goal, request_rate, _since(start), name)
        if load.failure:
            server.check_runs()
            if time.monotonic() >= deadline:
                raise OutOfTimeError
        return load


def _since(start: float) -> float:
    return round(time.monotonic() - start, 3)
