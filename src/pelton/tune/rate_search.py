"""The highest request rate that meets the SLO, by few loads."""

import math
from collections.abc import Callable

from pelton.tune.server import ProcessError
from pelton.tune.trial_log import Load

MAX_LOADS = 6
MAX_LOADS_OF_LOSERS = 2
"""Of settings that are known to stay below the best rate."""
STEP = 1.5
"""Factor between rates until the highest is between two of them."""
RESOLUTION = 1.12
"""Factor between the highest rate that met the SLO and the lowest that missed it, at which the search ends."""


def search_rate(measure: Callable[[float | None, bool], Load], start: float | None, best: float) -> list[Load]:
    """Loads at several rates, in the order of their measurement.

    `measure(request_rate, stop_early)` puts the load on; the rate None is that of all requests at once. `start` is the
    rate to begin with; None: what the server can do at most is measured first, and half of it is the beginning. `best`
    is the highest rate so far of other settings, 0 if there is none. From the beginning, rates go up or down by `STEP`
    until the SLO is met by one and missed by another; then each is the geometric mean of the two.

    Raises ProcessError if the server, asked for all it can do, answers nothing.
    """
    loads = []
    if start is None:
        loads.append(measure(None, False))
        if loads[0].is_slo_met:
            return loads
        throughput = loads[0].metrics.get("request_throughput")
        if not throughput:
            raise ProcessError(loads[0].failure or "no request was answered")
        start = throughput / 2
    rate, met, missed = start, 0.0, math.inf
    while len(loads) < MAX_LOADS and not (missed <= best and len(loads) >= MAX_LOADS_OF_LOSERS):
        loads.append(measure(rate, True))
        if loads[-1].is_slo_met:
            met = rate
        else:
            missed = rate
        if missed <= met * RESOLUTION:
            break
        rate = _next_rate(met, missed)
    return loads


def _next_rate(met: float, missed: float) -> float:
    if met == 0.0:
        return missed / STEP
    return met * STEP if math.isinf(missed) else math.sqrt(met * missed)


def best_load(loads: list[Load]) -> Load | None:
    """The one with the highest rate that met the SLO; None if none did."""
    met = [load for load in loads if load.is_slo_met]
    return max(met, key=lambda load: math.inf if load.request_rate is None else load.request_rate, default=None)
