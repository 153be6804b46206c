"""What is told of a search: a line per trial, and a report at the end."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pelton.tune.confirmation import Confirmation, is_better, medians, num_kept
from pelton.tune.goal import THROUGHPUTS, Goal
from pelton.tune.plot import pareto_front, write_tune_plot
from pelton.tune.ranking import ranked
from pelton.tune.serve_flags import Settings
from pelton.tune.space import Space
from pelton.tune.trial_log import COMPLETE, FAILED, SLO_MISSED, STATES, Load, Trial


def trial_line(trial: Trial, best: Trial | None, goal: Goal, space: Space, *, minutes_left: float) -> str:
    """Its settings and what came of them, the best so far, and the time that is left."""
    verdict = "SLO missed, " if trial.state == SLO_MISSED else ""
    found = verdict + result_of(trial, goal)
    so_far = "none has met the SLO" if best is None else f"best: trial {best.number}"
    again = ", once more" if trial.attempt > 1 else ""
    return (
        f"Trial {trial.number}{again}, {named(trial.settings, space)}: {found}; {so_far}; {minutes_left:.0f} min left"
    )


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
    if trial.load is not None and trial.load.failure:
        return trial.load.failure
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
        confirmations: Sequence[Confirmation],
        *,
        is_rate_sought: bool,
        end: str,
        command: Callable[[Settings], str],
    ) -> None:
        """`trials`: all of them. `confirmations`: of one candidate after the other; all but the last are refuted.
        `end`: why there are no more trials. `command`: line that starts a server with settings."""
        self._goal = goal
        self._space = space
        self._trials = trials
        self._confirmations = confirmations
        self._last = confirmations[-1] if confirmations else None
        self._is_rate_sought = is_rate_sought
        self._end = end
        self._command = command
        order = ranked(trials, goal)
        self._first = order[0] if order else None
        self.best = self._first if self._first is not None and self._first.state == COMPLETE else None
        """The best trial of the search; None if none has met the SLO."""

    @property
    def recommended(self) -> Trial | None:
        """What is better than the default by all that was measured, or else the default, if that is good; None if it is
        not."""
        if self._last is not None and self._last.is_worth_it:
            return self._last.candidate.trial
        if self._last is None and self.best is not None and is_better(self.best, self._trials[0], self._goal):
            return self.best
        return self._trials[0] if self._is_default_good() else None

    def text(self) -> str:
        counts = {state: sum(trial.state == state for trial in self._trials) for state in STATES}
        heading = (
            f"{len(self._trials)} trials: {counts[COMPLETE]} complete, {counts[SLO_MISSED]} missed the SLO, "
            f"{counts[FAILED]} failed; {self._end}"
        )
        return "\n".join([heading, *self._verdict(), *self._comparison(), *self._front()])

    def as_plain(self) -> dict[str, Any]:
        recommended, last = self.recommended, self._last
        return {
            "end": self._end,
            "slo": [str(slo) for slo in self._goal.slos],
            "objective": self._goal.objective,
            "best_trial": None if self.best is None else self.best.number,
            "recommended_trial": None if recommended is None else recommended.number,
            "command": None if recommended is None else self._command(recommended.settings),
            "gain": None if last is None else last.gain,
            "gains": None if last is None else last.gains,
            "is_slo_met_again": None if last is None or not last.best else not last.is_refuted,
            "is_confirmed": last is not None and last.is_finished and last.is_worth_it,
            "again": [_again(confirmation) for confirmation in self._confirmations],
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

    def _is_default_good(self) -> bool:
        """When it was measured last. At the rate of better settings it may miss the SLO that it meets at its own."""
        if not self._trials:
            return False
        measured = [one for one in self._confirmations if one.default]
        if measured and (measured[-1].is_default_good or not self._is_rate_sought):
            return measured[-1].is_default_good
        return self._trials[0].state == COMPLETE

    def _verdict(self) -> Iterable[str]:
        best, last, recommended = self.best, self._last, self.recommended
        keep = "Keep the default settings" if recommended is not None else "No settings are to be recommended"
        if best is None:
            yield from self._nearest()
        elif best.number == 0:
            yield "The default settings are the best of those that were tried:"
        elif last is None and recommended is best:
            yield f"Best, but not measured again, trial {best.number}:"
        elif last is None:
            yield f"{keep}: the best, trial {best.number}, has {self._times(best)} only"
        elif last.is_refuted:
            yield f"{keep}: trial {last.candidate.trial.number} {_refutation(last)} when it was measured again"
        elif not last.is_worth_it:
            yield f"{keep}: trial {last.candidate.trial.number} is not better by enough: {self._evidence(last)}"
        else:
            name = "Best" if last.is_finished else "Best so far, but not measured again as often as it should be"
            yield f"{name}, trial {last.candidate.trial.number}: {self._evidence(last)}:"
        if best is not None and recommended is not None:
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

    def _times(self, best: Trial) -> str:
        return _gain_text(self._goal.gain(best.metrics, self._trials[0].metrics), self._goal)

    def _evidence(self, found: Confirmation) -> str:
        """What speaks for a candidate that was not refuted, or against it."""
        parts = []
        if self._goal.slos:
            at = "" if found.candidate.request_rate is None else f" at {found.candidate.request_rate:.3g} requests/s"
            parts.append(f"it kept the SLO{at} {_counted(found.best)}")
            if found.default:
                parts.append(f"the default did {_counted(found.default)}")
        if found.is_default_left_out:
            parts.append("the default had failed")
        if found.gain is not None:
            each = ", ".join(f"{gain:.2f}" for gain in found.gains)
            parts.append(f"{_gain_text(found.gain, self._goal)} (median of {each})")
        return "; ".join(parts)

    def _comparison(self) -> Iterable[str]:
        """What default and best gave in the search, and again."""
        if not self._trials:
            return
        yield "In the search:"
        yield f"    default: {result_of(self._trials[0], self._goal)}"
        if self.best is not None and self.best.number:
            yield f"    best:    {result_of(self.best, self._goal)}"
        for found in self._confirmations:
            yield "Measured again in turn, medians:"
            yield f"    default: {self._medians(found, found.default)}"
            yield f"    trial {found.candidate.trial.number}: {self._medians(found, found.best)}"
            for name, loads in (("the default", found.default), (f"trial {found.candidate.trial.number}", found.best)):
                yield from (f"    {name} failed: {failure}" for failure in map(_failure, loads) if failure)

    def _medians(self, found: Confirmation, loads: Sequence[Load | str]) -> str:
        if not loads:
            return "-"
        values = figures(medians(self._goal, loads), self._goal, request_rate=found.candidate.request_rate)
        return f"{values}; SLO kept {_counted(loads)}" if self._goal.slos else values

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


def _again(found: Confirmation) -> dict[str, Any]:
    loads = {"default": found.default, "best": found.best}
    return {
        "trial": found.candidate.trial.number,
        "request_rate": found.candidate.request_rate,
        **{name: [{"failure": one} if isinstance(one, str) else asdict(one) for one in loads[name]] for name in loads},
    }


def _failure(load: Load | str) -> str:
    return load if isinstance(load, str) else load.failure


def _refutation(found: Confirmation) -> str:
    """What a candidate did that was not to be."""
    failures = [failure for failure in map(_failure, found.best) if failure]
    return f"failed ({failures[0]})" if failures else "missed the SLO"


def _counted(loads: Sequence[Load | str]) -> str:
    return f"in {num_kept(loads)} of {len(loads)} rounds"


def _gain_text(gain: float, goal: Goal) -> str:
    if goal.is_maximized:
        return f"{gain:.2f} times as much {goal.objective}"
    return f"{goal.objective} {gain:.2f} times as good"
