"""The load on the servers that are tried: `pelton bench serve`, as a process."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any

from pelton.bench.bounds import Bound
from pelton.bench.dataset_config import DatasetConfig, needs_tokenizer
from pelton.error_text import one_line
from pelton.tune.goal import Goal
from pelton.tune.serve_flags import write_flags
from pelton.tune.server import OwnedProcess, ProcessError
from pelton.tune.trial_log import Load

GRACE_SECONDS = 60.0
"""What a load may take longer than its limit: start, tokenizing, report."""


@dataclass(frozen=True)
class Workload:
    """Which requests are sent, and how they are judged."""

    model: str
    dataset: DatasetConfig
    goal: Goal
    backend: str = "openai"
    ignore_eos: bool = False
    max_concurrency: int | None = None
    num_warmups: int = 0

    @property
    def most_in_flight(self) -> int:
        """Requests at once, at most."""
        return min(self.max_concurrency or self.dataset.num_prompts, self.dataset.num_prompts)

    def arguments(
        self,
        port: int,
        result: Path,
        request_rate: float | None,
        max_seconds: float,
        *,
        stop_early: bool,
        draw: int = 0,
    ) -> list[str]:
        """Of `pelton bench serve`. With `stop_early` it ends as soon as an SLO is sure to be missed. Requests and their
        moments are drawn anew for each `draw`."""
        dataset = replace(self.dataset, seed=self.dataset.seed + draw)
        arguments = ["--port", str(port), "--backend", self.backend, *dataset_arguments(dataset)]
        if needs_tokenizer(self.dataset):
            arguments += ["--tokenizer", self.model]
        if self.ignore_eos:
            arguments.append("--ignore-eos")
        if request_rate is not None:
            arguments += ["--request-rate", str(request_rate)]
        if self.max_concurrency is not None:
            arguments += ["--max-concurrency", str(self.max_concurrency)]
        if self.num_warmups:
            arguments += ["--num-warmups", str(self.num_warmups)]
        if stop_early:
            for slo in self.goal.slos:
                arguments += ["--stop-when", str(slo.negated())] if _can_stop(slo) else []
        arguments += ["--metric-percentiles", self.goal.percentiles, "--max-seconds", f"{max_seconds:.1f}"]
        arguments += ["--ready-check-timeout-sec", "0", "--disable-tqdm", "--save-result"]
        return [*arguments, "--result-dir", str(result.parent), "--result-filename", result.name]


def measure_load(command: Sequence[str], result: Path, goal: Goal, max_seconds: float) -> dict[str, Any]:
    """Run a load to its end, and return its result. What it says goes into a file beside the result.

    Raises ProcessError if it fails, or did not measure what the goal needs. That requests fail is in the result.
    """
    result.unlink(missing_ok=True)
    with OwnedProcess(command, result.with_suffix(".log")) as process:
        status = process.wait(max_seconds + GRACE_SECONDS)
        if not result.exists():
            raise ProcessError(f"the load ended with status {status}, without a result: {process.last_words()}")
        content = _read(result)
        if status and not content.get("failed"):
            raise ProcessError(f"the load ended with status {status}: {process.last_words()}")
    if missing := [name for name in goal.metrics if name not in content]:
        raise ProcessError(f"the load's result has no {', '.join(missing)}")
    is_whole = not content.get("failed") and not content.get("stopped")
    if is_whole and (unknown := [name for name in goal.metrics if content[name] is None]):
        raise ProcessError(
            f"no answer had the tokens that {', '.join(unknown)} is measured of; have longer answers, such as by "
            "--output-len or --ignore-eos, or choose another metric"
        )
    return content


def _read(result: Path) -> dict[str, Any]:
    try:
        content = json.loads(result.read_text())
    except ValueError as error:
        raise ProcessError(f"the load's result cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ProcessError("the load's result is no JSON object")
    return content


def make_load(content: dict[str, Any], goal: Goal, request_rate: float | None, seconds: float, name: str) -> Load:
    """`name`: of the result's file."""
    stopped = str(content.get("stopped") or "")
    metrics = {key: value for key, value in content.items() if isinstance(value, int | float) and isfinite(value)}
    failure = ""
    if num_failed := content.get("failed"):
        failures = content.get("failures") or [{"first": "it is not known why"}]
        failure = f"{num_failed} requests failed: {one_line(str(failures[0]['first']))}"
    is_met = not stopped and not failure and goal.is_met(content)
    return Load(request_rate, is_met, seconds, name, metrics, stopped, failure)


def dataset_arguments(dataset: DatasetConfig) -> list[str]:
    """What is not the default, as flags."""
    values = {one.name: getattr(dataset, one.name) for one in fields(DatasetConfig)}
    return write_flags({one.name: values[one.name] for one in fields(DatasetConfig) if values[one.name] != one.default})


def _can_stop(slo: Bound) -> bool:
    """Whether it can be sure before the end of a run that it is missed."""
    metric = slo.latency
    return metric is not None and metric.statistic != "std" and metric.latency != "itl"
