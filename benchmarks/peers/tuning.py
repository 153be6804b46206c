"""Finds settings for other engines by short trials: one setting is changed at a time, and kept if it helps."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

from engines import PEERS, Engine

WORKLOADS = ("short_batch", "short_stream", "short_prefill")
LEAST_GAIN = 1.03
"""A setting is kept if the geometric mean of the workloads' figures grows by that factor."""
Trial = dict[str, Any]
Measure = Callable[[Engine], Mapping[str, float]]
"""Engine -> tokens per second of each workload that worked."""


def score(figures: Mapping[str, float]) -> float:
    """0 unless all workloads worked."""
    return geometric_mean(figures.values()) if set(WORKLOADS) <= set(figures) else 0.0


def tuned(engine: Engine, measure: Measure) -> tuple[Engine, list[Trial]]:
    """The engine with its best settings, and all that was tried."""
    trials: list[Trial] = []

    def attempt(candidate: Engine) -> float:
        figures = measure(candidate)
        trials.append({"engine": engine.spec, "settings": candidate.settings, "tokens_per_s": dict(figures)})
        return score(figures)

    best = attempt(engine)
    for name, values in PEERS[engine.name].candidates.items():
        for value in values:
            candidate = replace(engine, settings=engine.settings | {name: value})
            if (found := attempt(candidate)) > best * LEAST_GAIN:
                engine, best = candidate, found
    return engine, trials


def fastest(engines: list[Engine], measure: Measure) -> tuple[Engine, list[Trial]]:
    """The fastest of several formats of an engine, and what each gave."""
    figures = [measure(engine) for engine in engines]
    trials = [
        {"engine": engine.spec, "settings": engine.settings, "tokens_per_s": dict(found)}
        for engine, found in zip(engines, figures, strict=True)
    ]
    scores = [score(found) for found in figures]
    return engines[scores.index(max(scores))], trials
