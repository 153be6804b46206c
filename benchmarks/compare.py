"""Runs workloads.py and its counterparts for other engines in turn, several rounds, and prints medians.

    .venv/bin/python benchmarks/compare.py --rounds 3 --model smollm2 --export /tmp/export \\
        --vllm /tmp/vllm/bin/python --llama-cpp /tmp/llama/bin/python

/tmp/export is what peers/export.py made of the same model. Engines without an interpreter are left out. Prints a table,
and ends with one line of JSON: all rounds, and the threads' barrier latency before and after, which tells whether the
machine was the same throughout.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from pelton.ops import create_backend
from pelton.ops.cpu import CPUBackend
from pelton.runner.cpu_count import available_cores

HERE = Path(__file__).parent


def barrier_ns() -> float:
    backend = create_backend(available_cores())
    assert isinstance(backend, CPUBackend)
    latency = backend.barrier_ns()
    backend.close()
    return round(latency)


def run(command: list[str]) -> list[dict[str, object]]:
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "4"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"engine"')]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--export", type=Path, required=True)
    parser.add_argument(
        "--rounds", type=int, default=3, help="in turn; each starts every engine anew, and runs it twice"
    )
    parser.add_argument("--vllm", help="interpreter that has vllm")
    parser.add_argument("--llama-cpp", help="interpreter that has llama_cpp")
    parser.add_argument("--workloads", nargs="+", default=["offline", "stream", "prefill"])
    options = parser.parse_args()
    pelton = [sys.executable, str(HERE / "workloads.py"), "--model", options.model, "--dtype", options.dtype]
    commands = [pelton]
    if options.vllm:
        commands.append([options.vllm, str(HERE / "peers/vllm_workloads.py"), str(options.export)])
    if options.llama_cpp:
        gguf = str(options.export / "model.gguf")
        commands.append([options.llama_cpp, str(HERE / "peers/llama_cpp_workloads.py"), gguf])
    rows, latencies = [], []
    for _ in range(options.rounds):
        for command in commands:
            latencies.append(barrier_ns())
            rows += run([*command, "--rounds", "2", "--workloads", *options.workloads])
    figures = defaultdict(list)
    for row in rows:
        figures[row["engine"], row["workload"]].append(float(str(row["tokens_per_s"])))
    for (engine, workload), speeds in sorted(
        figures.items(), key=lambda item: (item[0][1], -statistics.median(item[1]))
    ):
        print(f"{workload:>8} {engine:>10} {statistics.median(speeds):>9.1f} tok/s ({min(speeds)} to {max(speeds)})")
    tags = {"model": options.model, "dtype": options.dtype, "barrier_ns": latencies}
    print(json.dumps({"benchmark": "compare", **tags, "rounds": rows}))


if __name__ == "__main__":
    main()
