"""Runs workloads.py for several engines in turn, several rounds, and prints medians and ratios.

    .venv/bin/python benchmarks/compare.py --model smollm2 --folder /tmp/smollm2 \\
        --engines pelton:int8 llama.cpp:Q8_0 openvino:Q8_0 --llama-cpp /tmp/llama/bin/python \\
        --openvino /tmp/openvino/bin/python

A round starts every engine anew, one after the other, never two at a time. Engines are ENGINE:FORMAT: Pelton's formats
are those of workloads.py, and it runs --model; llama.cpp and openvino run FORMAT.gguf of the folder, vllm (bf16) the
folder, which export.py, requantize.py or random_llama.py made. Without --model Pelton runs the folder's file nearest to
its format. Ratios are Pelton's speed over the other engine's, each round by itself, and their median.

Prints a table, and ends with one line of JSON: all figures, and the latency of Pelton's barrier before each engine and
at the end, which tells whether the machine was the same throughout.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from workloads import DEFAULT_WORKLOADS, PEERS, PELTON_FORMATS, WORKLOADS

from pelton.ops import create_backend
from pelton.ops.cpu import CPUBackend
from pelton.runner.cpu_count import available_cores

PROGRAM = Path(__file__).with_name("workloads.py")
FILES = {"int8": "Q8_0", "int4": "Q4_0", "bf16": "BF16", "fp32": "BF16"}
"""Pelton's format -> file of the folder."""
Figures = dict[tuple[str, str], list[float]]
"""Engine and workload -> median speed of each round, tokens/s."""


def barrier_ns() -> int:
    backend = create_backend(available_cores())
    assert isinstance(backend, CPUBackend), "without native libraries Pelton is no engine to compare"
    latency = backend.barrier_ns()
    backend.close()
    return round(latency)


def command_of(spec: str, options: argparse.Namespace) -> list[str]:
    name, _, weight_format = spec.partition(":")
    if name == "pelton":
        if weight_format not in PELTON_FORMATS:
            sys.exit(f"{spec}: Pelton's formats are {', '.join(PELTON_FORMATS)}")
        if options.model is None and weight_format not in FILES:
            sys.exit(f"{spec} needs --model: which file of the folder is it to run?")
        interpreter, model = sys.executable, options.model or options.folder / f"{FILES[weight_format]}.gguf"
    elif name in PEERS and weight_format:
        interpreter = getattr(options, name.replace(".", "_"))
        model = options.folder if name == "vllm" else options.folder / f"{weight_format}.gguf"
        if not model.exists():
            sys.exit(f"{spec}: {model} is missing; export.py, requantize.py or random_llama.py make it")
    else:
        sys.exit(f"{spec}: an engine is pelton, {', '.join(PEERS)}, a colon and a format")
    if interpreter is None:
        sys.exit(f"{spec}: name the interpreter that has it, with --{name.replace('.', '-')}")
    shared = ["--threads", str(options.threads), "--repetitions", str(options.repetitions)]
    command = [interpreter, str(PROGRAM), "--engine", spec, "--model", str(model), *shared]
    return [*command, "--workloads", *options.workloads]


def run(command: Sequence[str]) -> list[dict[str, object]]:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr[-4000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"engine"')]


def measure(commands: dict[str, list[str]], num_rounds: int) -> list[dict[str, object]]:
    rows = []
    for number in range(num_rounds):
        for command in commands.values():
            latency = barrier_ns()
            found = [row | {"round": number, "barrier_ns": latency} for row in run(command)]
            for row in found:
                print(json.dumps(row), file=sys.stderr, flush=True)
            rows += found
    return rows


def median_by_round(rows: Sequence[dict[str, object]]) -> Figures:
    speeds: dict[tuple[str, str, object], list[float]] = {}
    for row in rows:
        key = str(row["engine"]), str(row["workload"]), row["round"]
        speeds.setdefault(key, []).append(float(str(row["tokens_per_s"])))
    figures: Figures = {}
    for (engine, workload, _), values in speeds.items():
        figures.setdefault((engine, workload), []).append(statistics.median(values))
    return figures


def ratio(figures: Figures, own: str, other: str, workload: str) -> float:
    pairs = zip(figures[own, workload], figures[other, workload], strict=True)
    return round(statistics.median(a / b for a, b in pairs), 3)


def summarize(figures: Figures, engines: Sequence[str], workloads: Sequence[str]) -> list[dict[str, object]]:
    own = [engine for engine in engines if engine.startswith("pelton:")]
    return [
        {
            "workload": workload,
            "engine": engine,
            "tokens_per_s": round(statistics.median(figures[engine, workload]), 1),
            "lowest": min(figures[engine, workload]),
            "highest": max(figures[engine, workload]),
            "ratios": {name: ratio(figures, name, engine, workload) for name in own if name != engine},
        }
        for workload in workloads
        for engine in engines
    ]


def print_table(summary: Sequence[dict[str, object]]) -> None:
    for row in summary:
        ratios = row["ratios"]
        assert isinstance(ratios, dict)
        told = "   ".join(f"{name} is {value:.2f} times that" for name, value in ratios.items())
        speed = f"{row['tokens_per_s']:>9} tok/s ({row['lowest']} to {row['highest']})"
        print(f"{row['workload']:>12} {row['engine']:<16} {speed:<40} {told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", required=True, metavar="ENGINE:FORMAT")
    parser.add_argument("--folder", type=Path, required=True, help="of the model's files for other engines")
    parser.add_argument("--model", help="what Pelton runs, in all formats")
    parser.add_argument("--rounds", type=int, default=3, help="in turn; each starts every engine anew")
    parser.add_argument("--repetitions", type=int, default=1, help="of each workload in a round")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--workloads", nargs="+", default=DEFAULT_WORKLOADS, choices=list(WORKLOADS))
    for name in PEERS:
        parser.add_argument(f"--{name.replace('.', '-')}", metavar="PYTHON", help=f"interpreter that has {name}")
    options = parser.parse_args()
    commands = {spec: command_of(spec, options) for spec in options.engines}
    rows = measure(commands, options.rounds)
    summary = summarize(median_by_round(rows), options.engines, options.workloads)
    print_table(summary)
    tags = {"model": options.model or options.folder.name, "threads": options.threads, "last_barrier_ns": barrier_ns()}
    print(json.dumps({"benchmark": "compare", **tags, "summary": summary, "rounds": rows}))


if __name__ == "__main__":
    main()
