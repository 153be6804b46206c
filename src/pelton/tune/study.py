"""The whole search: trials until their number or the time is over, then the best and the default settings once more."""

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from pelton import __version__
from pelton.bench.machine import cpu_model
from pelton.runner.cpu_count import available_cores
from pelton.tune.config import TuneConfig
from pelton.tune.confirmation import Confirmation
from pelton.tune.ranking import ranked
from pelton.tune.report import Report, trial_line
from pelton.tune.search import propose
from pelton.tune.serve_flags import Settings, serve_arguments
from pelton.tune.server import ProcessError
from pelton.tune.space import make_space
from pelton.tune.trial import PELTON, Commands, OutOfTimeError, TrialRunner
from pelton.tune.trial_log import COMPLETE, FAILED, Load, Trial, TrialLog
from pelton.tune.workload import Workload

MAX_FIRST_FAILURES = 3
"""If nothing has ever worked, further trials would not either."""
CONFIRM_SECONDS = 60.0
"""What a load that is measured again may take at least; beyond that, twice as long as before."""


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
    machine = {"cpu": cpu_model(), "cores": num_cores, "pelton": __version__}
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


class _Study:
    def __init__(self, config: TuneConfig, runner: TrialRunner, log: TrialLog, tell: Callable[[str], None]) -> None:
        self._config = config
        self._goal = config.goal
        self._runner = runner
        self._log = log
        self._tell = tell
        self._deadline = time.monotonic() + config.options.max_minutes * 60.0

    def run(self) -> Outcome:
        confirmation, is_interrupted = None, False
        try:
            end = self._search()
            confirmation = self._confirm()
        except KeyboardInterrupt:
            end, is_interrupted = "interrupted", True
        report = Report(self._goal, self._runner.space, self._log.trials, confirmation, end=end, command=self._command)
        return Outcome(report, self._log.trials, is_interrupted)

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
        while len(trials) < options.trials:
            if len(trials) >= MAX_FIRST_FAILURES and all(trial.state == FAILED for trial in trials):
                return f"nothing has worked in {len(trials)} trials"
            settings = propose(self._runner.space, self._goal, trials, self._config.dataset.seed)
            if settings is None:
                return "all settings were tried"
            if time.monotonic() + self._seconds_needed() > self._deadline:
                return "the time is over"
            try:
                trial = self._runner.run(len(trials), settings, self._deadline, best=self._best())
            except OutOfTimeError:
                return "the time is over; the last trial was not finished, and is left out"
            self._log.append(trial)
            self._tell(self._line(trial))
        return "all trials are done"

    def _best(self) -> Trial | None:
        """None if none has met the SLO."""
        return next((trial for trial in ranked(self._log.trials, self._goal) if trial.state == COMPLETE), None)

    def _line(self, trial: Trial) -> str:
        best = self._best()
        minutes = max(0.0, self._deadline - time.monotonic()) / 60
        return trial_line(trial, best, self._goal, self._runner.space, minutes_left=minutes)

    def _seconds_needed(self) -> float:
        """For another trial, as long as usual, and for what is measured again at the end."""
        finished = [trial.seconds for trial in self._log.trials if trial.state != FAILED]
        usual = median(finished) if finished else 0.0
        again = sum(trial.start_seconds + trial.load.seconds for trial in self._compared() if trial.load is not None)
        return usual + self._config.options.confirm_rounds * again

    def _compared(self) -> list[Trial]:
        """The default and the best, in this order, if the best is another and met the SLO."""
        best = self._best()
        return [] if best is None or best.number == 0 else [self._log.trials[0], best]

    def _confirm(self) -> Confirmation | None:
        """None if there is nothing to compare. A default that failed is not measured again."""
        compared = self._compared()
        if not compared or not self._config.options.confirm_rounds:
            return None
        default, best = compared
        confirmation = Confirmation(self._goal)
        for number in range(1, self._config.options.confirm_rounds + 1):
            self._tell(f"Round {number} of measuring the default and the best settings again")
            confirmation.add(
                None if default.state == FAILED else self._again(default, best, f"again-{number}-default"),
                self._again(best, best, f"again-{number}-best"),
            )
        return confirmation

    def _again(self, trial: Trial, best: Trial, name: str) -> Load | str:
        """Under its own request rate, or that of the best where it met the SLO with none. A message if it fails."""
        rate = trial.request_rate if trial.state == COMPLETE else best.request_rate
        usual = max((load.seconds for load in [*trial.loads, *best.loads]), default=0.0)
        seconds = CONFIRM_SECONDS + 2 * (trial.start_seconds + usual)
        try:
            return self._runner.measure_again(trial, rate, name, seconds)
        except (ProcessError, OutOfTimeError) as error:
            return str(error) or f"not done after {seconds:.0f} seconds"
