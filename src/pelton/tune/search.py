"""Which settings are tried next: optuna's tree-structured Parzen estimator (TPE), asked again for every trial.

It knows nothing but the trials that it is told, so that a search goes on after an interruption as if there had been
none.
"""

import random
from collections.abc import Sequence

import optuna

from pelton.tune.goal import Goal
from pelton.tune.ranking import ranked
from pelton.tune.serve_flags import Settings
from pelton.tune.space import Dimension, Space
from pelton.tune.trial_log import Trial

NUM_RANDOM_TRIALS = 8
"""Settings at random before the estimator is asked."""
_MAX_ASKS = 20
"""Of the estimator, which likes to repeat itself, until settings are drawn at random."""


def propose(space: Space, goal: Goal, trials: Sequence[Trial], seed: int) -> Settings | None:
    """Settings that were not tried; the defaults first; None if there are none left."""
    if not trials:
        return space.default
    tried = [trial.settings for trial in trials]
    generator = random.Random(f"{seed} {len(trials)}")
    if len(trials) > NUM_RANDOM_TRIALS:
        study = _study(space, goal, trials, generator.getrandbits(32))
        for _ in range(_MAX_ASKS):
            indices = study.ask({one.name: _distribution(one) for one in space.dimensions}).params
            settings = space.normal({one.name: one.values[indices[one.name]] for one in space.dimensions})
            if space.is_new(settings, tried):
                return settings
    return space.draw(generator, tried)


def _study(space: Space, goal: Goal, trials: Sequence[Trial], seed: int) -> optuna.Study:
    """With ranks as values: the estimator heeds nothing but the order of trials."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=0))
    distributions = {one.name: _distribution(one) for one in space.dimensions}
    for rank, trial in enumerate(ranked(trials, goal)):
        indices = {one.name: one.values.index(trial.settings[one.name]) for one in space.dimensions}
        study.add_trial(optuna.trial.create_trial(params=indices, distributions=distributions, value=float(rank)))
    return study


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    """Over the indices of the values."""
    last = len(dimension.values) - 1
    if dimension.is_ordered:
        return optuna.distributions.IntDistribution(0, last)
    return optuna.distributions.CategoricalDistribution(list(range(last + 1)))
