"""Runs an engine's offline workloads in a process of its own, and gives up on what takes too long or fails."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engines import Engine, UnavailableError
from processes import running

PROGRAM = Path(__file__).with_name("workloads.py")
Row = dict[str, Any]


def worker_command(engine: Engine, workloads: Sequence[str], repetition: int) -> list[str]:
    options = ["--engine", engine.spec, "--model", engine.path, "--threads", str(engine.num_threads)]
    options += ["--settings", json.dumps(engine.settings), "--first-repetition", str(repetition)]
    return [engine.interpreter, str(PROGRAM), *options, "--workloads", *workloads]


def measure(
    engine: Engine,
    workloads: Sequence[str],
    repetition: int,
    *,
    load_seconds: float,
    workload_seconds: float,
    failed: Callable[[str, str], None],
) -> list[Row]:
    """A row for each workload that worked. `failed` gets the others, and why; the engine is started anew after each."""
    rows: list[Row] = []
    left = list(workloads)
    while left:
        found, reason = _until_failure(engine, left, repetition, load_seconds, workload_seconds)
        rows += found
        left = left[len(found) :]
        if reason is None:
            break
        stage, why = reason
        if stage == "load":
            for workload in left:
                failed(workload, f"loading: {why}")
            break
        failed(left.pop(0), why)
    return rows


def _until_failure(
    engine: Engine, workloads: Sequence[str], repetition: int, load_seconds: float, workload_seconds: float
) -> tuple[list[Row], tuple[str, str] | None]:
    """Rows of the first workloads, and if there is not one for each: whether it failed to load or in one, and why."""
    rows: list[Row] = []
    stage, seconds, load = "load", load_seconds, 0.0
    try:
        with running(worker_command(engine, workloads, repetition), engine.variables, reads_rows=True) as process:
            while len(rows) < len(workloads):
                row = process.next_row(seconds)
                if row is None:
                    raise UnavailableError("it ended early")
                if stage == "load":
                    stage, seconds, load = "workload", workload_seconds, row["load_seconds"]
                else:
                    rows.append(row | {"load_seconds": load})
    except UnavailableError as error:
        return rows, (stage, str(error))
    return rows, None
