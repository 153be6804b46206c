"""The whole search: trials until their number or the time is over, then the best and the default settings once more."""

import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

from pelton import __version__, envs
from pelton.bench.machine import cpu_model
from pelton.ops.cpu.library import load_library
from pelton.runner.cpu_count import available_cores
from pelton.tune.config import TuneConfig
from pelton.tune.confirmation import Confirmation, candidates, confirm
from pelton.tune.ranking import ranked
from pelton.tune.report import Report, named, trial_line
from pelton.tune.search import propose
from pelton.tune.serve_flags import Settings, serve_arguments
from pelton.tune.server import ProcessError
from pelton.tune.space import make_space
from pelton.tune.trial import PELTON, Commands, OutOfTimeError, TrialRunner
from pelton.tune.trial_log import COMPLETE, FAILED, Load, Repetition, Trial, TrialLog
from pelton.tune.workload import Workload

MAX_FIRST_FAILURES = 3
"""If nothing has ever worked, further trials would not either."""
CONFIRM_SECONDS = 60.0
"""What a load that is measured again may take at least; beyond that, twice as long as before."""
MAX_CONFIRM_SHARE = 0.5
"""Of the time, at most, is kept for what is measured again."""


@dataclass
class Outcome:
    """What a search has found."""

    report: Report
    trials: list[Trial]
    is_interrupted: bool


def run_tune(
    config: TuneConfig,
    *,
    commands: Commands = PELTON,
    tell: Callable[[str], None],
    num_cores: int | None = None,
) -> Outcome:
    """`commands` start servers and loads. `tell` gets a line about each trial. `num_cores`: those of this machine, by
    default. Ctrl-C ends the search and what it has started; the log stays, and the outcome has what there is.

    Raises ValueError for what cannot be sought, and for a log of another study.
    """
    num_cores = num_cores or available_cores()
    workload = Workload(
        model=config.model,
        dataset=config.dataset,
        goal=config.goal,
        backend=config.options.backend,
        ignore_eos=config.options.ignore_eos,
        max_concurrency=config.options.max_concurrency,
        num_warmups=config.options.num_warmups,
    )
    space = make_space(config.options.search, config.fixed, num_cores, workload.most_in_flight)
    machine = {"cpu": cpu_model(), "cores": num_cores, "kernels": _kernels(), "pelton": __version__}
    with TrialLog(config.folder, config.as_study(space.as_plain(), machine)) as log:
        runner = TrialRunner(
            workload=workload,
            space=space,
            fixed_flags=config.serve_flags,
            request_rate=config.options.request_rate,
            is_rate_sought=config.options.is_rate_sought,
            folder=config.folder,
            commands=commands,
        )
        return _Study(config, runner, log, tell).run()


def _kernels() -> str:
    """The instruction-set level that servers will have, or numpy."""
    wanted = envs.cpu_isa()
    library = None if wanted == "numpy" else load_library(wanted)
    return "numpy" if library is None else library.level


class _Study:
    def __init__(self, config: TuneConfig, runner: TrialRunner, log: TrialLog, tell: Callable[[str], None]) -> None:
        self._config = config
        self._goal = config.goal
        self._runner = runner
        self._log = log
        self._tell = tell
        self._seconds = config.options.max_minutes * 60.0
        self._deadline = time.monotonic() + self._seconds
        self._is_rate_sought = config.options.is_rate_sought
        self._confirmations: list[Confirmation] = []

    def run(self) -> Outcome:
        is_interrupted = False
        try:
            end = self._search()
            self._confirm()
        except KeyboardInterrupt:
            end, is_interrupted = "interrupted", True
        trials, space = self._log.trials, self._runner.space
        report = Report(
            self._goal,
            space,
            trials,
            self._confirmations,
            is_rate_sought=self._is_rate_sought,
            end=end,
            command=self._command,
        )
        return Outcome(report, trials, is_interrupted)

    def _command(self, settings: Settings) -> str:
        given = self._runner.space.given(settings)
        return shlex.join(["pelton", "serve", *serve_arguments(self._config.model, self._config.serve_flags, given)])

    def _search(self) -> str:
        """Returns why it ended."""
        trials, options = self._log.trials, self._config.options
        self._tell(
            f"Tuning {', '.join(one.name for one in self._runner.space.dimensions)}: {options.trials} trials at most, "
            f"{options.max_minutes:g} minutes; log in {self._log.folder}"
            + (f", which has {len(trials)} trials already" if trials else "")
        )
        once_more = [trial for trial in trials if trial.state == FAILED and trial.attempt == 1]
        num_failures = 0
        while once_more or len(trials) < options.trials:
            if num_failures >= MAX_FIRST_FAILURES and all(trial.state == FAILED for trial in trials):
                return (
                    f"nothing has worked in {num_failures} trials; do something about what they say, and "
                    "give the same command again"
                )
            former = once_more.pop(0) if once_more else None
            settings = propose(self._runner.space, self._goal, trials, self._config.dataset.seed)
            number, attempt = len(trials), 1
            if former is not None:
                settings, number, attempt = former.settings, former.number, former.attempt + 1
            if settings is None:
                return "all settings were tried; those that come to the same under this load count once"
            deadline = self._deadline - self._seconds_of_confirmation()
            if time.monotonic() + self._usual_seconds() > deadline:
                return "the time is over"
            try:
                trial = self._runner.run(number, settings, deadline, best=self._best(), attempt=attempt)
            except OutOfTimeError:
                return "the time is over; the last trial was not finished, and is left out"
            self._log.append(trial)
            self._tell(self._line(trial))
            num_failures += trial.state == FAILED
        return "all trials are done"

    def _best(self) -> Trial | None:
        """None if none has met the SLO."""
        return next((trial for trial in ranked(self._log.trials, self._goal) if trial.state == COMPLETE), None)

    def _line(self, trial: Trial) -> str:
        best = self._best()
        minutes = max(0.0, self._deadline - time.monotonic()) / 60
        return trial_line(trial, best, self._goal, self._runner.space, minutes_left=minutes)

    def _usual_seconds(self) -> float:
        """Of a trial."""
        finished = [trial.seconds for trial in self._log.trials if trial.state != FAILED]
        return median(finished) if finished else 0.0

    def _seconds_of_confirmation(self) -> float:
        """What measuring one candidate and the default again will take; of the default it is known first."""
        if not self._log.trials:
            return 0.0
        default = self._log.trials[0]
        best = self._best() or default
        # Where a rate is sought, both get that of the best.
        loads = [(trial.start_seconds, trial.load) for trial in (best if self._is_rate_sought else default, best)]
        again = sum(start + load.seconds for start, load in loads if load is not None)
        return min(self._config.options.confirm_rounds * again, MAX_CONFIRM_SHARE * self._seconds)

    def _confirm(self) -> None:
        trials, num_rounds = self._log.trials, self._config.options.confirm_rounds
        if not trials:
            return
        found = candidates(trials, self._goal, is_rate_sought=self._is_rate_sought)
        with suppress(OutOfTimeError):
            confirm(self._goal, found, trials[0], num_rounds, self._again, self._confirmations)

    def _again(self, trial: Trial, request_rate: float | None, number: int) -> Load | str:
        """A load of a round: that of the log, if it has one, or else a new one. A message if it fails."""
        key = (trial.number, request_rate, number)
        for one in self._log.repetitions:
            if (one.trial, one.request_rate, one.round) == key:
                return one.load
        at = "" if request_rate is None else f" at {request_rate:.3g} requests/s"
        settings = named(trial.settings, self._runner.space)
        self._tell(f"Measured again, round {number}: trial {trial.number}, {settings}{at}")
        usual = max((load.seconds for load in trial.loads), default=0.0)
        limit = CONFIRM_SECONDS + 2 * (trial.start_seconds + usual)
        seconds = min(limit, self._deadline - time.monotonic())
        if seconds <= 0.0:
            raise OutOfTimeError
        name = f"again-{len(self._log.repetitions):03d}"
        try:
            load = self._runner.measure_again(trial, request_rate, name, seconds, draw=number)
        except (ProcessError, OutOfTimeError) as error:
            if time.monotonic() >= self._deadline:
                raise OutOfTimeError from None
            return str(error) or f"not done after {seconds:.0f} seconds"
        self._log.append_repetition(Repetition(trial.number, request_rate, number, load))
        return load
