"""How a server's requests went: when each of them waited and got tokens, and how latencies are distributed."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pelton.bench.bounds import LATENCIES
from pelton.bench.plots.page import (
    BLUE,
    GREY,
    LIGHT_BLUE,
    LIGHT_GREY,
    RED,
    Figure,
    axis,
    empty_figure,
    layout,
    lines,
    machine_facts,
    text,
    write_page,
)
from pelton.bench.serving.request_result import RequestResult
from pelton.bench.serving.statistics import latency_values, token_events

MAX_POINTS = 2000
"""Of a distribution's curve: more than a screen shows."""
MAX_BINS = 100
"""Of the tokens over time."""
EVENTS_PER_BIN = 20
"""On average, at least: fewer make a rate of chance."""
SHOWN_AS_HELD_BACK = 1e-3
"""Seconds that sending was late. Below, it is the event loop's own delay."""

_Bar = tuple[int, float, float, str]
"""Number of the request, start and length in seconds, label."""

_FACTS = {
    "model_id": "Model",
    "backend": "Backend",
    "label": "Label",
    "date": "Date",
    "num_prompts": "Requests",
    "request_rate": "Requests per second, asked for",
    "max_concurrency": "Most requests at once",
    "duration": "Duration, s",
    "completed": "Completed",
    "failed": "Failed",
    "stopped": "Stopped",
    "request_throughput": "Requests per second",
    "output_throughput": "Output tokens per second",
    "total_token_throughput": "Tokens per second, with those of prompts",
    "client_cpu_share": "Processor share of the load generator",
}
"""Key of the result -> what it is called."""


def write_serve_plot(path: Path | str, result: Mapping[str, Any], results: Sequence[RequestResult]) -> None:
    """Write a page with a timeline of the requests, tokens and running requests over time, and distributions.

    `result` is what `pelton bench serve` saves; its percentiles are marked. Raises ValueError if plotly is not
    installed.
    """
    facts = {title: _shown(result.get(key)) for key, title in _FACTS.items()}
    ordered = sorted(results, key=sent_at)
    write_page(
        path,
        "pelton bench serve",
        facts | machine_facts(result.get("machine"), "Machine of the load generator"),
        [timeline(ordered), distributions(result, ordered)],
    )


def sent_at(result: RequestResult) -> float:
    """Seconds from the start; for a request that was never sent, when it was due."""
    return max(result.start_time, result.due_time)


def timeline(results: Sequence[RequestResult]) -> Figure:
    """One bar per request, in the order given, above output tokens per second and running requests."""
    title = "Requests over time"
    if not results:
        return empty_figure(title, "there was no request")
    return {
        "data": [*_bars(results), _token_rate(results), _running(results)],
        "layout": layout(
            title,
            760,
            barmode="overlay",
            xaxis=axis("", anchor="y", showticklabels=False, rangemode="tozero"),
            xaxis2=axis("", anchor="y2", showticklabels=False, matches="x"),
            xaxis3=axis("seconds since the start", anchor="y3", matches="x"),
            yaxis=axis("request", domain=[0.48, 1], autorange="reversed"),
            yaxis2=axis("output tokens/s", domain=[0.24, 0.44], rangemode="tozero"),
            yaxis3=axis("running requests", domain=[0, 0.2], rangemode="tozero"),
        ),
    }


def distributions(result: Mapping[str, Any], results: Sequence[RequestResult]) -> Figure:
    """For each metric the share of requests that took at most so long, with the result's percentiles marked."""
    title = "Latencies: share of requests (of intervals, for itl) that took at most so long"
    completed = [one for one in results if one.success]
    if not completed:
        return empty_figure(title, "no request was completed")
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    for number, name in enumerate(LATENCIES):
        values = sorted(1e3 * seconds for seconds in latency_values(name, completed))
        suffix = "" if number == 0 else str(number + 1)
        left, top = number % 2 == 0, number < 2
        places = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
        axes[f"xaxis{suffix}"] = axis(
            f"{name}: {LATENCIES[name]}, ms",
            domain=[0, 0.46] if left else [0.54, 1],
            anchor=f"y{suffix}",
            rangemode="tozero",
        )
        axes[f"yaxis{suffix}"] = axis(
            "percent", domain=[0.57, 1] if top else [0, 0.43], anchor=f"x{suffix}", range=[0, 105]
        )
        if values:
            data += [_curve(name, values) | places, _marks(name, result, values[-1]) | places]
    return {"data": data, "layout": layout(title, 720, showlegend=False, **axes)}


def _bars(results: Sequence[RequestResult]) -> list[dict[str, Any]]:
    """Bars of the times held back, until the first token, and after it; and marks of failures."""
    held: list[_Bar] = []
    waiting: list[_Bar] = []
    tokens: list[_Bar] = []
    failed: list[_Bar] = []
    for number, one in enumerate(results, 1):
        start, label = sent_at(one), _label(number, one)
        if start - one.due_time > SHOWN_AS_HELD_BACK:
            held.append((number, one.due_time, start - one.due_time, label))
        if one.success:
            waiting.append((number, start, one.ttft, label))
            tokens.append((number, start + one.ttft, one.e2el - one.ttft, label))
        else:
            failed.append((number, start, one.time_taken, label))
    parts = (
        ("held back before sending", LIGHT_GREY, held),
        ("waiting for the first token", LIGHT_BLUE, waiting),
        ("getting tokens", BLUE, tokens),
        ("failed", RED, failed),
    )
    traces = [_bar(name, colour, bars) for name, colour, bars in parts if bars]
    if failed:
        # However short: a bar of a request that was refused at once cannot be seen.
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "marker": {"symbol": "x", "color": RED},
                "x": [start for _, start, _, _ in failed],
                "y": [number for number, *_ in failed],
                "hovertext": [label for *_, label in failed],
                "hoverinfo": "text",
                "showlegend": False,
            }
        )
    return traces


def _bar(name: str, colour: str, bars: Sequence[_Bar]) -> dict[str, Any]:
    numbers, starts, seconds, labels = (list(column) for column in zip(*bars, strict=True))
    return {
        "type": "bar",
        "orientation": "h",
        "width": 0.9,
        "name": name,
        "marker": {"color": colour, "line": {"width": 0}},
        "y": numbers,
        "base": starts,
        "x": seconds,
        "hovertext": labels,
        "hoverinfo": "text",
    }


def _label(number: int, one: RequestResult) -> str:
    head = f"request {number}, sent after {sent_at(one):.3f} s"
    if not one.success:
        return lines([head, f"failed: {text(one.error[:300])}"])
    cached = f" ({one.cached_len} cached)" if one.cached_len else ""
    return lines(
        [
            head,
            f"ttft {1e3 * one.ttft:.1f} ms, e2el {1e3 * one.e2el:.1f} ms",
            f"tpot {1e3 * one.tpot:.2f} ms" if one.output_len > 1 else None,
            f"{one.prompt_len} prompt tokens{cached}, {one.output_len} output tokens",
        ]
    )


def _token_rate(results: Sequence[RequestResult]) -> dict[str, Any]:
    """Tokens per second in equal parts of the time to the last event."""
    times, num_tokens = token_events(results)
    end = max(times, default=0.0)
    trace = _step_line("output tokens/s", BLUE, "2")
    if end <= 0.0:
        return trace | {"x": [], "y": []}
    num_bins = min(MAX_BINS, max(1, len(times) // EVENTS_PER_BIN))
    width = end / num_bins
    counts = [0.0] * num_bins
    for time, number in zip(times, num_tokens, strict=True):
        counts[min(num_bins - 1, int(time / width))] += number
    rates = [count / width for count in counts]
    return trace | {"x": [number * width for number in range(num_bins + 1)], "y": [*rates, rates[-1]]}


def running_requests(results: Iterable[RequestResult]) -> list[tuple[float, int]]:
    """How many requests were sent and not yet answered, from each time on, in seconds from the start."""
    changes: dict[float, int] = {}
    for one in results:
        start = sent_at(one)
        changes[start] = changes.get(start, 0) + 1
        end = start + one.time_taken
        changes[end] = changes.get(end, 0) - 1
    running = 0
    steps = []
    for time in sorted(changes):
        running += changes[time]
        steps.append((time, running))
    return steps


def _running(results: Sequence[RequestResult]) -> dict[str, Any]:
    steps = running_requests(results)
    trace = _step_line("running requests", GREY, "3")
    return trace | {"x": [time for time, _ in steps], "y": [number for _, number in steps]}


def _step_line(name: str, colour: str, suffix: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "line": {"color": colour, "shape": "hv", "width": 1.5},
        "fill": "tozeroy",
        "xaxis": f"x{suffix}",
        "yaxis": f"y{suffix}",
        "showlegend": False,
    }


def _curve(name: str, values: Sequence[float]) -> dict[str, Any]:
    number = len(values)
    num_points = min(number, MAX_POINTS)
    ranks = [round(point * (number - 1) / max(1, num_points - 1)) for point in range(num_points)]
    return {
        "type": "scatter",
        "mode": "lines+markers" if number == 1 else "lines",
        "name": name,
        "line": {"color": BLUE, "shape": "hv"},
        "x": [values[rank] for rank in ranks],
        "y": [100 * (rank + 1) / number for rank in ranks],
        "hovertemplate": "%{y:.1f} % took at most %{x:.2f} ms<extra></extra>",
    }


def _marks(name: str, result: Mapping[str, Any], largest: float) -> dict[str, Any]:
    """The percentiles of the result, with text where the curve up to the largest value leaves room."""
    points = []
    for key, value in result.items():
        match = re.fullmatch(rf"p([0-9.]+)_{name}_ms", key)
        if match and value is not None and math.isfinite(value):
            points.append((float(match[1]), float(value)))
    points.sort()
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": f"{name} percentiles",
        "marker": {"color": RED, "size": 7},
        "x": [value for _, value in points],
        "y": [percent for percent, _ in points],
        "text": [f"p{percent:g} {value:.4g} ms" for percent, value in points],
        "textposition": ["middle left" if value > largest / 2 else "bottom right" for _, value in points],
        "textfont": {"size": 11},
        "cliponaxis": False,
        "hoverinfo": "text",
    }


def _shown(value: Any) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value
