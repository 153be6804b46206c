"""What the trials of a search for settings gave."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pelton.bench.plots.page import (
    BLUE,
    GREEN,
    INK,
    LIGHT_BLUE,
    ORANGE,
    RED,
    Figure,
    axis,
    empty_figure,
    layout,
    lines,
    text,
    write_page,
)

Trial = Mapping[str, Any]

DEFAULT_TRIAL = 0
"""The number of the trial with the default settings."""
COLUMNS = 3
"""Of the parameters' plots."""
ROW_HEIGHT = 260

_STATES = {
    "complete": ("met the SLO", {"color": BLUE, "size": 9}),
    "slo_missed": ("missed the SLO", {"color": LIGHT_BLUE, "size": 9, "symbol": "circle-open"}),
}


def write_tune_plot(
    path: Path | str,
    trials: Sequence[Trial],
    *,
    latency: str,
    throughput: str = "output_throughput",
    slo: float | None = None,
    best: int | None = None,
    facts: Mapping[str, object] | None = None,
) -> None:
    """Write a page with every trial's throughput over its latency, and with throughput over each parameter.

    Trials are lines of the log: `number`, `settings`, `metrics`, `state` (complete, slo_missed or failed). `latency`
    and `throughput` are keys of their metrics, `slo` is the bound of that latency, `best` the number of the best trial.
    Facts are shown above. Raises ValueError if plotly is not installed.
    """
    counts = ", ".join(
        f"{sum(trial['state'] == state for trial in trials)} {name}"
        for state, name in {"complete": "met the SLO", "slo_missed": "missed it", "failed": "failed"}.items()
    )
    measured = [trial for trial in trials if _has(trial, latency) and _has(trial, throughput)]
    figures = [
        trade_off(measured, latency=latency, throughput=throughput, slo=slo, best=best),
        effects(measured, throughput=throughput),
    ]
    write_page(path, "pelton tune", {**(facts or {}), "Trials": f"{len(trials)}: {counts}"}, figures)


def trade_off(trials: Sequence[Trial], *, latency: str, throughput: str, slo: float | None, best: int | None) -> Figure:
    """Throughput over latency: all trials, those of them that no other one beats in both, the best and the default."""
    title = "Throughput over latency"
    if not trials:
        return empty_figure(title, "no trial was measured")

    def points(chosen: Sequence[Trial]) -> dict[str, Any]:
        return {
            "type": "scatter",
            "mode": "markers",
            "x": [trial["metrics"][latency] for trial in chosen],
            "y": [trial["metrics"][throughput] for trial in chosen],
            "hovertext": [_label(trial, latency, throughput) for trial in chosen],
            "hoverinfo": "text",
        }

    data = []
    for state, (name, marker) in _STATES.items():
        if chosen := [trial for trial in trials if trial["state"] == state]:
            data.append(points(chosen) | {"name": name, "marker": marker})
    complete = [trial for trial in trials if trial["state"] == "complete"]
    front = pareto_front(complete, latency=latency, throughput=throughput)
    if front:
        line = {"color": GREEN, "width": 1.5, "shape": "vh"}
        data.append(points(front) | {"name": "Pareto front", "mode": "lines", "line": line})
    for number, name, marker in (
        (DEFAULT_TRIAL, "default", {"color": ORANGE, "symbol": "diamond-open", "size": 16}),
        (best, "best", {"color": RED, "symbol": "star", "size": 16}),
    ):
        if chosen := [trial for trial in trials if trial["number"] == number]:
            data.append(points(chosen) | {"name": name, "marker": marker})
    if slo is not None:
        heights = [trial["metrics"][throughput] for trial in trials]
        line = {"color": INK, "dash": "dot"}
        bound = {"type": "scatter", "mode": "lines", "name": f"SLO: {slo:g}", "line": line}
        data.append(bound | {"x": [slo, slo], "y": [0, max(heights)]})
    axes = {"xaxis": axis(latency, rangemode="tozero"), "yaxis": axis(throughput, rangemode="tozero")}
    return {"data": data, "layout": layout(title, 560, **axes)}


def pareto_front(trials: Sequence[Trial], *, latency: str, throughput: str) -> list[Trial]:
    """Trials that no other one beats in one of both without being worse in the other, by latency."""
    front: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: (trial["metrics"][latency], -trial["metrics"][throughput])):
        if not front or trial["metrics"][throughput] > front[-1]["metrics"][throughput]:
            front.append(trial)
    return front


def effects(trials: Sequence[Trial], *, throughput: str) -> Figure:
    """Throughput over the values of each setting that was varied."""
    title = "Throughput over each setting"
    values: dict[str, set[str]] = {}
    for trial in trials:
        for name, value in trial["settings"].items():
            values.setdefault(name, set()).add(_value(value))
    varied = [name for name, found in values.items() if len(found) > 1]
    if not varied:
        return empty_figure(title, "no setting was varied")
    num_rows = math.ceil(len(varied) / COLUMNS)
    data, axes = [], {}
    for number, name in enumerate(varied):
        suffix = "" if number == 0 else str(number + 1)
        row, column = divmod(number, COLUMNS)
        top, left = 1 - row / num_rows, column / COLUMNS
        axes[f"xaxis{suffix}"] = axis(
            text(name),
            type="category",
            categoryorder="array",
            categoryarray=sorted(values[name], key=_order),
            domain=[left, left + 0.8 / COLUMNS],
            anchor=f"y{suffix}",
        )
        axes[f"yaxis{suffix}"] = axis(
            throughput if column == 0 else "",
            domain=[top - 0.65 / num_rows, top],
            anchor=f"x{suffix}",
            rangemode="tozero",
        )
        for state, (state_name, marker) in _STATES.items():
            chosen = [trial for trial in trials if trial["state"] == state and name in trial["settings"]]
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": state_name,
                    "marker": marker,
                    "showlegend": number == 0 and bool(chosen),
                    "x": [_value(trial["settings"][name]) for trial in chosen],
                    "y": [trial["metrics"][throughput] for trial in chosen],
                    "hovertext": [f"trial {trial['number']}" for trial in chosen],
                    "xaxis": f"x{suffix}",
                    "yaxis": f"y{suffix}",
                }
            )
    return {"data": data, "layout": layout(title, 120 + ROW_HEIGHT * num_rows, **axes)}


def _has(trial: Trial, key: str) -> bool:
    value = (trial.get("metrics") or {}).get(key)
    return isinstance(value, int | float) and math.isfinite(value)


def _label(trial: Trial, latency: str, throughput: str) -> str:
    metrics = trial["metrics"]
    return lines(
        [
            f"trial {trial['number']}: {trial['state'].replace('_', ' ')}",
            f"{latency} {metrics[latency]:.4g}, {throughput} {metrics[throughput]:.4g}",
            *(f"{text(name)}: {text(_value(value))}" for name, value in trial["settings"].items()),
        ]
    )


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _order(value: str) -> tuple[bool, float, str]:
    """Numbers by their size, before names."""
    try:
        return False, float(value), ""
    except ValueError:
        return True, 0.0, value
