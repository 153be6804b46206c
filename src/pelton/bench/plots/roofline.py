"""How near decode steps come to the machine's ceilings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pelton.bench.plots.page import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    RED,
    Figure,
    axis,
    layout,
    machine_facts,
    write_page,
)

Row = Mapping[str, Any]

_MARKS = {
    "b_sat": ("B_sat", "batch size whose products take as long as reading the weights", RED),
    "knee": (
        "knee",
        "batch size at which the line from 0 to the largest batch's time reaches the smallest one's",
        GREY,
    ),
}
"""Key of the report -> what its batch size is called, what it is, and the colour of its line."""


def write_roofline_plot(path: Path | str, report: Mapping[str, Any]) -> None:
    """Write a page with step time and throughput over the batch size, measured and predicted.

    `report` is that of `pelton.bench.roofline`. Raises ValueError if plotly is not installed.
    """
    names = {"model": "Model", "kernels": "Kernels", "context": "Context, tokens"}
    facts = {title: report[key] for key, title in names.items()} | _facts(report)
    rows = report["rows"]
    figures = [step_times(report, rows), throughputs(report, rows)]
    write_page(path, "pelton bench roofline", facts | machine_facts(report["machine"]), figures)


def step_times(report: Mapping[str, Any], rows: Sequence[Row]) -> Figure:
    """Milliseconds of a step: measured, and what memory and arithmetic take at least."""
    title = "Time of a decode step"
    predicted: dict[str, tuple[str, dict[str, Any]]] = {
        "memory_ms": ("reading", {"color": ORANGE, "dash": "dash"}),
        "compute_ms": ("computing", {"color": GREEN, "dash": "dash"}),
        "predicted_ms": ("predicted (the larger)", {"color": INK, "width": 3}),
    }
    data = [_line(name, rows, [row[key] for row in rows], line) for key, (name, line) in predicted.items()]
    measured = [row["measured_ms"] for row in rows]
    hover = [f"batch of {row['batch_size']}: {row['measured_ms']:.4g} ms, {_reached(row)}" for row in rows]
    data.append(_points("measured (median)", rows, measured, hover))
    return {"data": data + _marks(report, data), "layout": _layout(title, rows, "ms")}


def throughputs(report: Mapping[str, Any], rows: Sequence[Row]) -> Figure:
    """Output tokens per second, measured and at the ceiling."""
    title = "Throughput of decoding"
    ceiling = [1e3 * row["batch_size"] / row["predicted_ms"] for row in rows]
    hover = [f"batch of {row['batch_size']}: {row['tokens_per_s']:.4g} tokens/s, {_reached(row)}" for row in rows]
    data = [
        _line("ceiling", rows, ceiling, {"color": INK, "width": 3}),
        _points("measured", rows, [row["tokens_per_s"] for row in rows], hover),
    ]
    return {"data": data + _marks(report, data), "layout": _layout(title, rows, "output tokens/s")}


def _reached(row: Row) -> str:
    return f"{100 * row['fraction']:.0f} % of the ceiling, which is {row['bound']}"


def _line(name: str, rows: Sequence[Row], values: Sequence[float], line: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "line": line,
        "x": [row["batch_size"] for row in rows],
        "y": list(values),
    }


def _points(name: str, rows: Sequence[Row], values: Sequence[float], hover: Sequence[str]) -> dict[str, Any]:
    return _line(name, rows, values, {"color": BLUE}) | {
        "mode": "lines+markers",
        "marker": {"size": 9, "color": BLUE},
        "hovertext": list(hover),
        "hoverinfo": "text",
    }


def _marks(report: Mapping[str, Any], data: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Upright lines at the batch sizes that matter."""
    heights = [value for trace in data for value in trace["y"]]
    marks = []
    for key, (name, _, colour) in _MARKS.items():
        batch_size = report[key]
        if batch_size:
            marks.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": f"{name} {batch_size:.3g}",
                    "line": {"color": colour, "dash": "dot"},
                    "x": [batch_size, batch_size],
                    "y": [min(heights), max(heights)],
                }
            )
    return marks


def _layout(title: str, rows: Sequence[Row], unit: str) -> dict[str, Any]:
    sizes = [row["batch_size"] for row in rows]
    return layout(
        title,
        480,
        xaxis=axis("batch size", type="log", tickvals=sizes, ticktext=[str(size) for size in sizes]),
        yaxis=axis(unit, type="log", dtick="D2"),
    )


def _facts(report: Mapping[str, Any]) -> dict[str, object]:
    ceilings = report["ceilings"]
    speeds = {"memory_gb_per_s": "Memory, GB/s", "cache_gb_per_s": "Last-level cache, GB/s"}
    facts: dict[str, object] = {
        title: f"{ceilings[key]:.4g}" for key, title in speeds.items() if ceilings[key] is not None
    }
    products = ceilings["gflop_per_s"].items()
    for key, (name, meaning, _) in _MARKS.items():
        if report[key] is not None:
            facts[name] = f"{report[key]:.3g}: {meaning}"
    return facts | {f"Products in {name}, GFLOP/s": f"{speed:.4g}" for name, speed in products}
