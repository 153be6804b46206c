"""Medians and ratios of a comparison, and its Markdown."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

Row = Mapping[str, Any]
Failures = Mapping[tuple[str, str], str]
"""Engine and workload -> why there are no figures."""


def speeds_by_round(rows: Sequence[Row]) -> dict[tuple[str, str], dict[int, float]]:
    """Engine and workload -> round -> tokens per second."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if "tokens_per_s" in row:
            found.setdefault((row["engine"], row["workload"]), {})[row["round"]] = row["tokens_per_s"]
    return found


def ratio(own: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """The median of each round's ratio, of the rounds that both have."""
    ratios = [own[number] / other[number] for number in own.keys() & other.keys()]
    return round(median(ratios), 3) if ratios else None


def summarize(rows: Sequence[Row], counterparts: Mapping[str, str]) -> list[dict[str, Any]]:
    """For each engine and workload the median and the range, and how much faster its counterpart among Pelton's is."""
    speeds = speeds_by_round(rows)
    summary = []
    for (engine, workload), by_round in speeds.items():
        entry: dict[str, Any] = {
            "engine": engine,
            "workload": workload,
            "tokens_per_s": round(median(by_round.values()), 1),
            "lowest": min(by_round.values()),
            "highest": max(by_round.values()),
            "rounds": len(by_round),
        }
        own = speeds.get((counterparts.get(engine, ""), workload))
        if own is not None:
            entry |= {"counterpart": counterparts[engine], "ratio": ratio(own, by_round)}
        summary.append(entry)
    return summary


def summarize_serving(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For each engine and rate, the median of each figure over the rounds."""
    cells: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        if row["workload"] == "serving":
            cells.setdefault((row["engine"], row["rate"]), []).append(row)
    return [
        {"engine": engine, "rate": rate, "rounds": len(found)}
        | {name: round(median(row[name] for row in found), 3) for name in _numbers(found)}
        for (engine, rate), found in cells.items()
    ]


def _numbers(rows: Sequence[Row]) -> list[str]:
    skipped = {"rate", "round", "barrier_ns"}
    return [name for name, value in rows[0].items() if isinstance(value, int | float) and name not in skipped]


def offline_table(summary: Sequence[Row], workloads: Sequence[str], failures: Failures) -> str:
    """A row for each engine, with the ratio to its counterpart: bold where Pelton is slower."""
    cells = {(entry["engine"], entry["workload"]): entry for entry in summary}
    wanted = [key for key in failures if key[1] in workloads]
    lines = [_line("engine", *workloads), "| --- |" + " ---: |" * len(workloads)]
    for engine in dict.fromkeys(engine for engine, _ in (*cells, *wanted)):
        keys = [(engine, name) for name in workloads]
        label = _label(engine, [failures[key] for key in keys if key in failures])
        lines.append(_line(label, *(_cell(cells.get(key), key in failures) for key in keys)))
    return "\n".join(lines)


def _label(engine: str, reasons: Sequence[str]) -> str:
    """With why something of it is missing."""
    return ": ".join([engine, *(["; ".join(dict.fromkeys(reasons)).replace("|", "/")] if reasons else [])])


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(entry: Row | None, has_failed: bool) -> str:
    if entry is None:
        return "failed" if has_failed else ""
    speed = entry["tokens_per_s"]
    figure = f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}"
    if entry.get("ratio") is None:
        return figure
    shown = f"{entry['ratio']:.2f}"
    return f"{figure} ({shown})" if entry["ratio"] >= 1 else f"{figure} (**{shown}**)"


SERVING_COLUMNS = {
    "mean input": "mean_input_len",
    "output tokens/s": "output_throughput",
    "TTFT mean, ms": "mean_ttft_ms",
    "TTFT p99, ms": "p99_ttft_ms",
    "TPOT median, ms": "median_tpot_ms",
}
"""Column -> key of a row of servers.py."""
_MORE_IS_BETTER = ("output_throughput",)


def serving_table(serving: Sequence[Row], failures: Failures) -> str:
    columns = ["engine", "requests/s", "answered", *SERVING_COLUMNS]
    lines = [_line(*columns), "| --- |" + " ---: |" * (len(columns) - 1)]
    for row in sorted(serving, key=lambda row: row["rate"]):
        answered = f"{row['completed']:.0f} of {row['num_prompts']:.0f}"
        figures = [f"{row[key]:,.1f}" for key in SERVING_COLUMNS.values()]
        lines.append(_line(row["engine"], f"{row['rate']:g}", answered, *figures))
    for (engine, workload), why in failures.items():
        if workload.startswith("serving"):
            rate = workload.removeprefix("serving").removeprefix(" at ").removesuffix("/s")
            lines.append(_line(_label(engine, [why]), rate, "failed", *[""] * len(SERVING_COLUMNS)))
    return "\n".join(lines)


def losses(summary: Sequence[Row], serving: Sequence[Row], counterparts: Mapping[str, str]) -> list[str]:
    """Where Pelton is slower than an engine that it is compared with, in words."""
    offline = [
        f"{entry['workload']}: {entry['counterpart']} has {entry['ratio']:.2f} of the speed of {entry['engine']}"
        for entry in summary
        if entry.get("ratio") is not None and entry["ratio"] < 1
    ]
    by_rate = {(row["engine"], row["rate"]): row for row in serving}
    served = {engine for engine, _ in by_rate}
    pairs = [(counterparts.get(row["engine"]), row) for row in serving]
    return offline + [
        loss
        for own, other in pairs
        if own in served
        for loss in _serving_losses(own, by_rate.get((own, other["rate"])), other)
    ]


def _serving_losses(engine: str, own: Row | None, other: Row) -> list[str]:
    """Latencies and throughput count only where both answered all: who answers less has the easier work."""
    where, rival = f"serving {other['rate']:g} requests/s: ", other["engine"]
    if own is None or own["completed"] < other["completed"]:
        answered = 0 if own is None else own["completed"]
        return [f"{where}{engine} answered {answered:.0f} requests, {rival} {other['completed']:.0f}"]
    if own["failed"] or other["failed"]:
        return []
    is_worse = {
        column: own[key] < other[key] if key in _MORE_IS_BETTER else own[key] > other[key]
        for column, key in SERVING_COLUMNS.items()
        if key != "mean_input_len"
    }
    return [
        f"{where}{column} is {own[SERVING_COLUMNS[column]]:.1f} with {engine}, "
        f"{other[SERVING_COLUMNS[column]]:.1f} with {rival}"
        for column, worse in is_worse.items()
        if worse
    ]


def markdown(
    summary: Sequence[Row],
    serving: Sequence[Row],
    workloads: Sequence[str],
    failures: Failures,
    counterparts: Mapping[str, str],
) -> str:
    """`workloads`: in the order of columns, and `serving` if it was wanted."""
    parts = []
    if offline := [name for name in workloads if name != "serving"]:
        parts.append(offline_table(summary, offline, failures))
        pairs = ", ".join(f"{own} to {other}" for other, own in counterparts.items())
        parts.append(f"Tokens/s, medians; in brackets the ratio of Pelton's speed, the median of rounds ({pairs}).")
    if "serving" in workloads:
        parts.append(serving_table(serving, failures))
    behind = losses(summary, serving, counterparts)
    if behind:
        parts.append("Pelton is behind in\n\n" + "\n".join(f"- {loss}" for loss in behind))
    return "\n\n".join(parts)
