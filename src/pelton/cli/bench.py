"""`pelton bench`: measure the engine, a server, or the machine."""

import argparse
from importlib import import_module

from pelton.cli.parser import CommandParser

BENCHMARKS = {
    "latency": ("pelton.cli.bench_latency", "seconds for one batch of requests"),
    "throughput": ("pelton.cli.bench_throughput", "tokens per second for many requests at once"),
    "serve": ("pelton.cli.bench_serve", "latencies and throughput of a server, under a load over time"),
    "roofline": ("pelton.cli.bench_roofline", "limits of this machine, and how near to them a model gets"),
}
"""Benchmark: (module with `make_parser` and `run`, what it measures). Loaded when used, so that help is quick."""


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="pelton bench",
        description="Measure the engine, a server, or the machine.",
        epilog="benchmarks: " + "; ".join(f"{name}: {does}" for name, (_, does) in BENCHMARKS.items()),
    )
    parser.add_argument(
        "benchmark", choices=BENCHMARKS, metavar="BENCHMARK", help="`pelton bench BENCHMARK --help` says more"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="what the benchmark takes")
    return parser


def run(options: argparse.Namespace) -> int:
    benchmark = import_module(BENCHMARKS[options.benchmark][0])
    return int(benchmark.run(benchmark.make_parser().parse_args(options.arguments)))
