"""What is told of a search: a line per trial, and a report at the end."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pelton.bench.plots.tune import pareto_front, write_tune_plot
from pelton.tune.confirmation import Confirmation, medians
from pelton.tune.goal import THROUGHPUTS, Goal
from pelton.tune.ranking import ranked
from pelton.tune.serve_flags import Settings
from pelton.tune.space import Space
from pelton.tune.trial_log import COMPLETE, FAILED, SLO_MISSED, STATES, Load, Trial


def trial_line(trial: Trial, best: Trial | None, goal: Goal, space: Space, *, minutes_left: float) -> str:
    """Its settings and what came of them, the best so far, and the time that is left."""
    verdict = "SLO missed, " if trial.state == SLO_MISSED else ""
    found = verdict + result_of(trial, goal)
    so_far = "none has met the SLO" if best is None else f"best: trial {best.number}"
    return f"Trial {trial.number}, {named(trial.settings, space)}: {found}; {so_far}; {minutes_left:.0f} min left"


def named(settings: Settings, space: Space) -> str:
    """Those that differ from the default."""
    given = space.given(settings)
    return ", ".join(f"{name} {value}" for name, value in given.items()) or "default settings"


def result_of(trial: Trial, goal: Goal) -> str:
    """Its figures, or why there are none of the whole load."""
    if trial.state == FAILED:
        return f"failed: {trial.message}"
    if trial.load is not None and trial.load.stopped:
        return f"stopped early, for {trial.load.stopped}"
    return figures(trial.metrics, goal, request_rate=trial.request_rate)


def figures(metrics: Mapping[str, Any], goal: Goal, *, request_rate: float | None = None) -> str:
    """The objective's value and those of the SLOs."""
    limits = {slo.metric: f" ({slo.comparison}{slo.limit:g})" for slo in goal.slos}
    rate = [] if request_rate is None else [f"{request_rate:.3g} requests/s"]
    return ", ".join([*rate, *(f"{name} {number(metrics.get(name))}{limits.get(name, '')}" for name in goal.metrics)])


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def front_axes(goal: Goal) -> tuple[str, str] | None:
    """Latency and throughput of the Pareto front; None if the goal has no latency."""
    latency = goal.latency
    throughput = goal.objective if goal.objective in THROUGHPUTS else "output_throughput"
    return None if latency is None else (latency, throughput)


class Report:
    """What a search has found, as lines for people and as plain data for programs."""

    def __init__(
        self,
        goal: Goal,
        space: Space,
        trials: Sequence[Trial],
        confirmation: Confirmation | None,
        *,
        end: str,
        command: Callable[[Settings], str],
    ) -> None:
        """`trials`: all of them. `end`: why there are no more. `command`: line that starts a server with settings."""
        self._goal = goal
        self._space = space
        self._trials = trials
        self._confirmation = confirmation
        self._end = end
        self._command = command
        order = ranked(trials, goal)
        self._first = order[0] if order else None
        self.best = self._first if self._first is not None and self._first.state == COMPLETE else None
        """The best trial; None if none has met the SLO."""

    @property
    def recommended(self) -> Trial | None:
        """The best trial, or the default if that does as well, or if the best does not keep what it promised."""
        if self.best is None or self._confirmation is None or self._confirmation.is_worth_it:
            return self.best
        return self._trials[0]

    def text(self) -> str:
        counts = {state: sum(trial.state == state for trial in self._trials) for state in STATES}
        heading = (
            f"{len(self._trials)} trials: {counts[COMPLETE]} complete, {counts[SLO_MISSED]} missed the SLO, "
            f"{counts[FAILED]} failed; {self._end}"
        )
        return "\n".join([heading, *self._verdict(), *self._comparison(), *self._front()])

    def as_plain(self) -> dict[str, Any]:
        recommended, confirmation = self.recommended, self._confirmation
        return {
            "end": self._end,
            "slo": [str(slo) for slo in self._goal.slos],
            "objective": self._goal.objective,
            "best_trial": None if self.best is None else self.best.number,
            "recommended_trial": None if recommended is None else recommended.number,
            "command": None if recommended is None else self._command(recommended.settings),
            "gain": None if confirmation is None else confirmation.gain,
            "gains": None if confirmation is None else confirmation.gains,
            "is_slo_met_again": None if confirmation is None else confirmation.is_best_confirmed,
            "again": None if confirmation is None else self._again(confirmation),
            "pareto_front": [trial.number for trial in self._front_trials()],
        }

    def write_plot(self, path: str, model: str) -> None:
        """For a goal with a latency. Raises OSError if the file cannot be written."""
        axes = front_axes(self._goal)
        assert axes is not None
        latency, throughput = axes
        write_tune_plot(
            path,
            [asdict(trial) for trial in self._trials],
            latency=latency,
            throughput=throughput,
            slo=next((slo.limit for slo in self._goal.slos if slo.metric == latency), None),
            best=None if self.best is None else self.best.number,
            facts={"Model": model, "SLO": ", ".join(map(str, self._goal.slos)), "End": self._end},
        )

    def _again(self, confirmation: Confirmation) -> dict[str, Any]:
        loads = {"default": confirmation.default, "best": confirmation.best}
        return {name: [load.metrics for load in found] for name, found in loads.items()}

    def _verdict(self) -> Iterable[str]:
        best, confirmation = self.best, self._confirmation
        if best is None:
            yield from self._nearest()
        elif best.number == 0:
            yield "The default settings are the best of those that were tried:"
        elif confirmation is None:
            yield f"Best, but not measured again, trial {best.number}:"
        elif confirmation.is_worth_it:
            yield f"Best, trial {best.number}: {self._gain(confirmation)}, SLO met again:"
        elif not confirmation.is_best_confirmed:
            yield (
                f"Keep the default settings: the best, trial {best.number}, did not meet the SLO when it was measured "
                "again" + ("" if confirmation.is_default_good else "; nor did the default")
            )
        else:
            yield f"Keep the default settings: the best, trial {best.number}, is {self._gain(confirmation)} only"
        if confirmation is not None:
            yield from (f"Not measured again, {failure}" for failure in confirmation.failures)
        if (recommended := self.recommended) is not None:
            yield f"    {self._command(recommended.settings)}"
            quantization = self._space.given(recommended.settings).get("quantization")
            if quantization is not None:
                yield f"(quantization {quantization} changes answers, too; `-- --quantization auto` leaves it as it is)"

    def _nearest(self) -> Iterable[str]:
        nearest = self._first
        if nearest is None:
            yield "Nothing was measured"
        elif nearest.state == FAILED:
            yield f"Every trial failed; trial 0: {self._trials[0].message}"
        else:
            yield f"No settings have met the SLO. The nearest, trial {nearest.number}: {result_of(nearest, self._goal)}"
            yield f"    {self._command(nearest.settings)}"

    def _gain(self, confirmation: Confirmation) -> str:
        if not confirmation.gains or confirmation.gain is None:
            return "the default was not measured again"
        direction = "as much" if self._goal.is_maximized else "as good in"
        each = ", ".join(f"{gain:.2f}" for gain in confirmation.gains)
        missed = "" if confirmation.is_default_good else " of the default, which missed the SLO"
        return f"{confirmation.gain:.2f} times {direction} {self._goal.objective}{missed} (median of {each})"

    def _comparison(self) -> Iterable[str]:
        """What default and best gave in the search, and again."""
        if not self._trials:
            return
        yield "In the search:"
        yield f"    default: {result_of(self._trials[0], self._goal)}"
        if self.best is not None and self.best.number:
            yield f"    best:    {result_of(self.best, self._goal)}"
        if self._confirmation is not None:
            yield "Measured again in turn, medians:"
            for name, loads in (("default:", self._confirmation.default), ("best:   ", self._confirmation.best)):
                yield f"    {name} {self._medians(loads)}"

    def _medians(self, loads: list[Load]) -> str:
        if not loads:
            return "-"
        return figures(medians(self._goal, loads), self._goal, request_rate=loads[0].request_rate)

    def _front_trials(self) -> list[Trial]:
        axes = front_axes(self._goal)
        if axes is None:
            return []
        latency, throughput = axes
        met = [
            {"number": trial.number, "metrics": trial.metrics}
            for trial in self._trials
            if trial.state == COMPLETE and trial.metrics.get(latency) is not None
        ]
        front = pareto_front(met, latency=latency, throughput=throughput)
        return [self._trials[one["number"]] for one in front]

    def _front(self) -> Iterable[str]:
        axes, front = front_axes(self._goal), self._front_trials()
        if axes is None or not front:
            return
        yield f"Pareto front of {axes[1]} against {axes[0]}:"
        for trial in front:
            values = f"{number(trial.metrics[axes[1]]):>10} {number(trial.metrics[axes[0]]):>10}"
            yield f"    {values}  trial {trial.number}, {named(trial.settings, self._space)}"
