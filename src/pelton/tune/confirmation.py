"""The best and the default settings, measured again in turn: what was the best of many is partly so by chance."""

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from pelton.tune.goal import Goal
from pelton.tune.trial_log import Load

LEAST_GAIN = 1.05
"""What is less better than the default is not worth flags."""


@dataclass
class Confirmation:
    """What came of it, by rounds."""

    goal: Goal
    default: list[Load] = field(default_factory=list)
    best: list[Load] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    """How many times as good as the default's the objective of the best settings was."""
    failures: list[str] = field(default_factory=list)

    def add(self, default: Load | str | None, best: Load | str) -> None:
        """A round: loads, or the messages of those that failed; None for a default that was left out."""
        for loads, load, name in ((self.default, default, "default"), (self.best, best, "best")):
            if isinstance(load, Load):
                loads.append(load)
            elif load is not None:
                self.failures.append(f"the {name} settings: {load}")
        if isinstance(default, Load) and isinstance(best, Load):
            self.gains.append(self.goal.gain(best.metrics, default.metrics))

    @property
    def gain(self) -> float | None:
        """The median; None if there is none."""
        return median(self.gains) if self.gains else None

    @property
    def is_best_confirmed(self) -> bool:
        """Whether the best settings met the SLO again, by the medians of its metrics."""
        return self._is_met(self.best)

    @property
    def is_default_good(self) -> bool:
        """Whether the default settings meet the SLO."""
        return self._is_met(self.default)

    @property
    def is_worth_it(self) -> bool:
        """Whether the best settings are to be preferred to the default."""
        if not self.is_best_confirmed:
            return False
        return not self.is_default_good or (self.gain is not None and self.gain >= LEAST_GAIN)

    def _is_met(self, loads: list[Load]) -> bool:
        return bool(loads) and self.goal.is_met(medians(self.goal, loads))


def medians(goal: Goal, loads: list[Load]) -> dict[str, Any]:
    """Of the goal's metrics; None where a load has none."""
    values = {name: [load.metrics.get(name) for load in loads] for name in goal.metrics}
    return {
        name: None if None in found else median(value for value in found if value is not None)
        for name, found in values.items()
    }
