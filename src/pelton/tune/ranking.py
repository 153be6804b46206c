"""The order of trials."""

from collections.abc import Sequence

from pelton.tune.goal import Goal
from pelton.tune.trial_log import COMPLETE, SLO_MISSED, Trial


def ranked(trials: Sequence[Trial], goal: Goal) -> list[Trial]:
    """The best first: those that met the SLO by the objective, then those that missed it by how far, then failures."""

    def key(trial: Trial) -> tuple[int, float, int]:
        if trial.state == COMPLETE:
            value = trial.metrics[goal.objective]
            return 0, -value if goal.is_maximized else value, trial.number
        if trial.state == SLO_MISSED:
            return 1, goal.excess(trial.metrics), trial.number
        return 2, 0.0, trial.number

    return sorted(trials, key=key)
