"""The best and the default settings, measured again in turn: what was the best of many is partly so by chance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeGuard

from pelton.tune.goal import Goal
from pelton.tune.ranking import ranked
from pelton.tune.rate_search import RESOLUTION
from pelton.tune.trial_log import COMPLETE, FAILED, Load, Trial

LEAST_GAIN = 1.05
"""What is less better than the default is not worth flags."""
MAX_CANDIDATES = 3
"""How many are measured again, each if the one before did not keep the SLO."""

Measure = Callable[[Trial, float | None, int], Load | str]
"""A trial's settings at a request rate, in a round; the message of what failed."""


@dataclass(frozen=True)
class Candidate:
    """What may be better than the default."""

    trial: Trial
    request_rate: float | None
    """That it is to keep the SLO at; None: without limit."""


@dataclass
class Confirmation:
    """What came of measuring a candidate and the default again at the same rate, by rounds."""

    goal: Goal
    candidate: Candidate
    num_rounds: int
    is_default_left_out: bool = False
    """It had failed in the search."""
    default: list[Load | str] = field(default_factory=list)
    best: list[Load | str] = field(default_factory=list)
    """Of the candidate."""

    @property
    def is_refuted(self) -> bool:
        """Whether the candidate failed to keep the SLO in any round."""
        return num_kept(self.best) < len(self.best)

    @property
    def is_finished(self) -> bool:
        num_default = self.num_rounds if self.is_default_left_out else len(self.default)
        return min(num_default, len(self.best)) >= self.num_rounds

    @property
    def is_default_good(self) -> bool:
        """Whether the default kept the SLO in most rounds."""
        return 2 * num_kept(self.default) > len(self.default)

    @property
    def gains(self) -> list[float]:
        """How many times as good as the default's the candidate's objective was, in each round that tells both."""
        return [
            self.goal.gain(best.metrics, default.metrics)
            for default, best in zip(self.default, self.best, strict=False)
            if _is_whole(default) and _is_whole(best)
        ]

    @property
    def gain(self) -> float | None:
        """The median; None if there is none."""
        return median(self.gains) if self.gains else None

    @property
    def is_gain_real(self) -> bool:
        """Whether it is large enough, and was one in every round."""
        return bool(self.gains) and median(self.gains) >= LEAST_GAIN and min(self.gains) > 1.0

    @property
    def is_worth_it(self) -> bool:
        """Whether the candidate is to be preferred to the default, by the rounds so far."""
        return not self.is_refuted and (not self.is_default_good or self.is_gain_real)


def confirm(
    goal: Goal,
    candidates: Sequence[Candidate],
    default: Trial,
    num_rounds: int,
    measure: Measure,
    confirmations: list[Confirmation],
) -> None:
    """Measure the first candidate again, in turn with the default, then the next one if it did not keep the SLO.

    What is found goes into the list as soon as the candidate was measured once: an exception of `measure` leaves there
    what was measured before. Who is measured first alternates by rounds. A default that failed is left out.
    """
    for candidate in candidates:
        found = Confirmation(goal, candidate, num_rounds, is_default_left_out=default.state == FAILED)
        sides = [(default, found.default), (candidate.trial, found.best)]
        for number in range(1, num_rounds + 1):
            for trial, loads in sides[:: 1 if number % 2 else -1]:
                if found.is_refuted or (trial is default and found.is_default_left_out):
                    continue
                loads.append(measure(trial, candidate.request_rate, number))
                if loads is found.best and len(loads) == 1:
                    confirmations.append(found)
        if not found.is_refuted:
            return


def candidates(trials: Sequence[Trial], goal: Goal, *, is_rate_sought: bool) -> list[Candidate]:
    """What may be better than the default, trial 0, by the search: the best, then the next in rank; where a rate is
    sought, the best at rates that are lower each time. None of them is hardly better than the default."""
    better = [trial for trial in ranked(trials, goal) if is_better(trial, trials[0], goal)]
    if not is_rate_sought or not better or better[0].request_rate is None:
        return [Candidate(trial, trial.request_rate) for trial in better][: 1 if is_rate_sought else MAX_CANDIDATES]
    best, least = better[0], 0.0
    rates = [better[0].request_rate / RESOLUTION**step for step in range(MAX_CANDIDATES)]
    if trials[0].state == COMPLETE:
        least = LEAST_GAIN * (trials[0].request_rate or trials[0].metrics["request_throughput"])
    return [Candidate(best, rate) for rate in rates if rate >= least or rate == best.request_rate]


def is_better(trial: Trial, default: Trial, goal: Goal) -> bool:
    """Whether it was, in the search, by enough."""
    if trial.state != COMPLETE or trial.number == default.number:
        return False
    return default.state != COMPLETE or goal.gain(trial.metrics, default.metrics) >= LEAST_GAIN


def _is_whole(load: Load | str) -> TypeGuard[Load]:
    """Whether it ran to its end, and its requests were answered."""
    return isinstance(load, Load) and not load.stopped and not load.failure


def num_kept(loads: Sequence[Load | str]) -> int:
    """How many of them met the SLO; what failed did not."""
    return sum(isinstance(load, Load) and load.is_slo_met for load in loads)


def medians(goal: Goal, loads: Sequence[Load | str]) -> dict[str, Any]:
    """Of the goal's metrics over loads that ran to their end; None if there is none."""
    whole = [load for load in loads if _is_whole(load)]
    return {name: median(load.metrics[name] for load in whole) if whole else None for name in goal.metrics}
