"""Finds settings for other engines by short trials: one setting is changed at a time, and kept if it helps.

Rivals run in turn, several times each, and their medians are compared: a machine that changes meanwhile favours none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean, median
from typing import Any

from engines import PEERS, Engine

WORKLOADS = ("short_batch", "short_stream", "short_prefill")
REPETITIONS = 3
LEAST_GAIN = 1.03
"""A setting is kept if the geometric mean of the workloads' figures grows by that factor."""
Trial = dict[str, Any]
Measure = Callable[[Engine, int], Mapping[str, float]]
"""Engine and repetition -> tokens per second of each workload that worked."""


def score(figures: Mapping[str, float]) -> float:
    """0 unless all workloads worked."""
    return geometric_mean(figures.values()) if set(WORKLOADS) <= set(figures) else 0.0


def in_turn(engines: Sequence[Engine], measure: Measure, trials: list[Trial]) -> list[float]:
    """Each engine's median score; 0 for one that failed once, which is not tried again. `trials` gets the figures."""
    scores: list[list[float]] = [[] for _ in engines]
    for repetition in range(REPETITIONS):
        for engine, found in zip(engines, scores, strict=True):
            if 0.0 not in found:
                figures = measure(engine, repetition)
                trials.append({"engine": engine.spec, "settings": engine.settings, "tokens_per_s": dict(figures)})
                found.append(score(figures))
    return [0.0 if 0.0 in found else median(found) for found in scores]


def tuned(engine: Engine, measure: Measure) -> tuple[Engine, list[Trial]]:
    """The engine with its best settings, and all that was tried."""
    trials: list[Trial] = []
    for name, values in PEERS[engine.name].candidates.items():
        for value in values:
            candidate = replace(engine, settings=engine.settings | {name: value})
            incumbent, found = in_turn([engine, candidate], measure, trials)
            if found > incumbent * LEAST_GAIN:
                engine = candidate
    return engine, trials


def fastest(engines: Sequence[Engine], measure: Measure) -> tuple[Engine, list[Trial]]:
    """The fastest of several formats of an engine, and what each gave."""
    trials: list[Trial] = []
    scores = in_turn(engines, measure, trials)
    return engines[scores.index(max(scores))], trials
