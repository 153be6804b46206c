"""Compares Pelton with other engines that are installed: the same workloads, in turn, several rounds.

    .venv/bin/python benchmarks/peers smollm2
    .venv/bin/python benchmarks/peers FILE.gguf --engines pelton:int8 llama.cpp:Q8_0 --workloads stream
    .venv/bin/python benchmarks/peers smollm2 --tune-peers

MODEL is a GGUF file, by any name that Pelton knows; other engines' files are made of it. Engines are ENGINE:FORMAT,
each in an environment that setup.py made; `stored` is the file as it is. What is missing, fails or takes too long is
told, and does not stop the others. Prints the tables in Markdown, and writes all figures to --output.
docs/benchmarks.md says more.
"""

import argparse
import json
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import model_files
import offline
import report
import servers
import tuning
from engines import PEERS, PELTON_FORMATS, TORCH_DTYPES, TORCH_ENGINES, Engine, UnavailableError
from workloads import DEFAULT_WORKLOADS, WORKLOADS

from pelton.bench.machine import describe_machine
from pelton.ops import create_backend
from pelton.runner.cpu_count import available_cores

DEFAULT_ENGINES = (
    "pelton:int8",
    "llama.cpp:Q8_0",
    "openvino:Q8_0",
    "pelton:int4",
    "llama.cpp:Q4_0",
    "openvino:Q4_0",
    "pelton:stored",
    "llama.cpp:stored",
    "pelton:bf16",
    "vllm:bf16",
    "vllm:fp32",
    "transformers:bf16",
    "transformers:fp32",
)
SERVING = "serving"
Row = dict[str, Any]


@dataclass
class Comparison:
    """What was found so far."""

    options: argparse.Namespace
    engines: list[Engine]
    machine: dict[str, object]
    """As it was at the beginning."""
    stored: str
    """Type of the file that Pelton runs."""
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    trials: list[Row] = field(default_factory=list)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    """Engine and workload (or `serving at 2/s`) -> why it is not measured."""
    spent: dict[str, float] = field(default_factory=dict)
    """Engine -> seconds of its rounds."""

    def failed(self, engine: Engine, workload: str, why: str) -> None:
        self.failures[engine.spec, workload] = why
        say(f"{engine.spec}, {workload}: {why}")

    def drop(self, engine: Engine, why: str) -> None:
        """It is not measured at all."""
        self.engines.remove(engine)
        for workload in self.options.workloads:
            self.failures[engine.spec, workload] = why
        say(f"{engine.spec}: {why}")

    def left(self, engine: Engine, workloads: Sequence[str]) -> list[str]:
        """Those that have not failed."""
        return [name for name in workloads if (engine.spec, name) not in self.failures]

    @property
    def counterparts(self) -> dict[str, str]:
        """Other engines' specs -> Pelton's."""
        return {engine.spec: engine.counterpart for engine in self.engines if engine.name != "pelton"}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine() -> dict[str, object]:
    backend = create_backend(available_cores())
    try:
        return describe_machine(backend)
    finally:
        backend.close()


def prepare(comparison: Comparison) -> None:
    """Drop what is not installed, and make the files of the others."""
    checkpoint = model_files.open_gguf(comparison.options.model)
    for engine in list(comparison.engines):
        try:
            comparison.versions[engine.spec] = engine.versions()
            if engine.name != "pelton":
                model_files.make(checkpoint, engine.files, engine.weight_format)
        except UnavailableError as error:
            comparison.drop(engine, str(error))


def short_trial(comparison: Comparison, engine: Engine, repetition: int) -> dict[str, float]:
    """Tokens per second of the tuning's workloads."""
    options = comparison.options
    rows = offline.measure(
        engine,
        tuning.WORKLOADS,
        repetition,
        load_seconds=options.load_limit,
        workload_seconds=options.time_limit,
        failed=lambda workload, why: say(f"trial of {engine.spec}, {engine.settings}, {workload}: {why}"),
    )
    say(f"trial of {engine.spec}, {engine.settings}: {[row['tokens_per_s'] for row in rows]}")
    return {row["workload"]: row["tokens_per_s"] for row in rows}


def choose_dtypes(comparison: Comparison) -> None:
    """Of an engine with both bf16 and fp32, keep what is faster here."""
    for name in PEERS:
        own = [engine for engine in comparison.engines if engine.name == name]
        rivals = [engine for engine in own if engine.weight_format in TORCH_DTYPES]
        if len(rivals) > 1:
            best, trials = tuning.fastest(rivals, partial(short_trial, comparison))
            comparison.trials += trials
            for engine in rivals:
                if engine is not best:
                    comparison.drop(engine, f"slower than {best.spec} in a short trial")


def tune_peers(comparison: Comparison) -> None:
    for position, engine in enumerate(comparison.engines):
        if engine.name != "pelton":
            best, trials = tuning.tuned(engine, partial(short_trial, comparison))
            comparison.engines[position] = best
            comparison.trials += trials
            say(f"best settings of {engine.spec}: {json.dumps(best.settings)}")


def measure_round(comparison: Comparison, number: int, workloads: Sequence[str]) -> None:
    """Each engine once, unless it would take longer in all than --engine-limit allows."""
    for engine in comparison.engines:
        spent = comparison.spent.get(engine.spec, 0.0)
        wanted = comparison.left(engine, workloads)
        if wanted and (number == 0 or spent * (number + 1) / number <= comparison.options.engine_limit):
            start = time.monotonic()
            measure_engine(comparison, engine, number, wanted)
            comparison.spent[engine.spec] = spent + time.monotonic() - start


def measure_engine(comparison: Comparison, engine: Engine, number: int, wanted: Sequence[str]) -> None:
    options = comparison.options
    placement = {"round": number, "barrier_ns": machine()["barrier_ns"]}

    def failed(workload: str, why: str) -> None:
        comparison.failed(engine, workload, why)

    if SERVING in wanted:
        load = servers.Load(options.rates, options.rate_seconds, options.least_requests, options.model)
        limits = {"load_seconds": options.load_limit, "rate_seconds": options.time_limit}
        rows = servers.measure(engine, load, number, **limits, failed=failed)
    else:
        limits = {"load_seconds": options.load_limit, "workload_seconds": options.time_limit}
        rows = offline.measure(engine, wanted, number, **limits, failed=failed)
    for row in rows:
        say(json.dumps(row | placement))
    comparison.rows += [row | placement for row in rows]
    write(comparison)


def result(comparison: Comparison) -> dict[str, Any]:
    options = comparison.options
    return {
        "benchmark": "peers",
        "date": options.date,
        "model": options.model,
        "stored": comparison.stored,
        "machine": comparison.machine,
        "threads": options.threads,
        "workloads": {name: asdict(WORKLOADS[name]) for name in options.workloads if name in WORKLOADS},
        "serving": {
            "rates": options.rates,
            "input_len": servers.INPUT_LEN,
            "output_len": servers.OUTPUT_LEN,
            "most_at_once": servers.MOST_AT_ONCE,
        },
        "engines": [
            {
                "engine": engine.spec,
                "versions": comparison.versions[engine.spec],
                "settings": engine.settings,
                "model": engine.path,
                "environment": engine.variables,
                "counterpart": engine.counterpart,
            }
            for engine in comparison.engines
        ],
        "not_measured": [
            {"engine": engine, "workload": workload, "reason": why}
            for (engine, workload), why in comparison.failures.items()
        ],
        "trials": comparison.trials,
        "rounds": comparison.rows,
        "summary": report.summarize(comparison.rows, comparison.counterparts),
        "serving_summary": report.summarize_serving(comparison.rows),
    }


def write(comparison: Comparison) -> None:
    """All that there is so far: a run that is ended has its figures."""
    unfinished = comparison.options.output.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(result(comparison), indent=1) + "\n")
    unfinished.rename(comparison.options.output)


def compare(comparison: Comparison) -> None:
    options = comparison.options
    choose_dtypes(comparison)
    if options.tune_peers:
        tune_peers(comparison)
    offline_workloads = [name for name in options.workloads if name != SERVING]
    for number in range(options.rounds):
        measure_round(comparison, number, offline_workloads)
    if SERVING in options.workloads:
        comparison.spent.clear()
        for number in range(options.serving_rounds):
            measure_round(comparison, number, [SERVING])
    write(comparison)


def print_tables(comparison: Comparison) -> None:
    summary = report.summarize(comparison.rows, comparison.counterparts)
    serving = report.summarize_serving(comparison.rows)
    workloads = comparison.options.workloads
    print(report.markdown(summary, serving, workloads, comparison.failures, comparison.counterparts))


def make_engines(options: argparse.Namespace) -> list[Engine]:
    """Raises ValueError for names that are none."""
    engines = []
    for spec in options.engines:
        name, _, weight_format = spec.partition(":")
        if name not in (*PEERS, "pelton") or not weight_format:
            raise ValueError(f"{spec}: an engine is pelton, {', '.join(PEERS)}, a colon and a format")
        if name == "pelton" and weight_format not in PELTON_FORMATS:
            raise ValueError(f"{spec}: Pelton's formats are {', '.join(PELTON_FORMATS)}")
        if name in TORCH_ENGINES and weight_format not in TORCH_DTYPES:
            raise ValueError(f"{spec}: {name}'s formats are {', '.join(TORCH_DTYPES)}")
        if name not in (*TORCH_ENGINES, "pelton") and weight_format in TORCH_DTYPES:
            raise ValueError(f"{spec}: {name} reads GGUF files, whose types are BF16, Q8_0 and Q4_0, and `stored`")
        settings = dict(PEERS[name].settings) if name != "pelton" else {}
        files = options.environments / "models" / options.name
        engines.append(
            Engine(name, weight_format, options.environments, files, options.model, options.threads, settings)
        )
    return engines


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text}")
    return value


def count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def make_parser() -> argparse.ArgumentParser:
    names = [*WORKLOADS, SERVING]
    parser = argparse.ArgumentParser(
        prog="benchmarks/peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a GGUF file, by any name that Pelton knows")
    parser.add_argument("--engines", nargs="+", default=list(DEFAULT_ENGINES), metavar="ENGINE:FORMAT")
    parser.add_argument(
        "--environments", type=Path, default=Path("~/.cache/pelton/peers"), help="a folder for each engine"
    )
    parser.add_argument("--workloads", nargs="+", default=[*DEFAULT_WORKLOADS, SERVING], choices=names)
    parser.add_argument("--rounds", type=count, default=3, help="of the offline workloads; each starts engines anew")
    parser.add_argument("--serving-rounds", type=count, default=1)
    parser.add_argument("--rates", nargs="+", type=positive, default=[1.0, 2.0, 4.0, 8.0], help="requests per second")
    parser.add_argument("--rate-seconds", type=positive, default=8.0, help="of requests, at each rate")
    parser.add_argument("--least-requests", type=count, default=12, help="at each rate")
    parser.add_argument(
        "--time-limit", type=positive, default=120.0, help="seconds, of a rate, or of a workload and its warm-up"
    )
    parser.add_argument(
        "--engine-limit", type=positive, default=600.0, help="seconds of an engine's rounds: slow ones get fewer rounds"
    )
    parser.add_argument("--load-limit", type=positive, default=240.0, help="seconds until an engine is ready")
    parser.add_argument("--threads", type=count, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tune-peers", action="store_true", help="first find the best settings of other engines")
    parser.add_argument("--output", type=Path, help="default: a JSON file of the model's name beside the environments")
    return parser


def main() -> None:
    parser = make_parser()
    options = parser.parse_args()
    options.date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    options.environments = options.environments.expanduser().resolve()
    try:
        checkpoint = model_files.open_gguf(options.model)
        options.name = model_files.folder_name(checkpoint.path)
        options.output = options.output or options.environments / f"{checkpoint.path.stem}.json"
        engines = make_engines(options)
    except ValueError as error:
        parser.error(str(error))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that engines can end in order
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    comparison = Comparison(options, engines, machine(), model_files.stored_format(checkpoint))
    prepare(comparison)
    compare(comparison)
    print_tables(comparison)


if __name__ == "__main__":
    main()
