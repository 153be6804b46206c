"""`pelton bench latency`: seconds for one batch of requests."""

import argparse
from dataclasses import fields

from pelton.bench.latency_config import LatencyConfig
from pelton.bench.result_files import check_can_be_written
from pelton.cli.bench_offline import add_output_json, tell
from pelton.cli.parser import CommandParser
from pelton.config import EngineArgs
from pelton.config.options import add_flags, from_flags


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="pelton bench latency",
        description="Time batches of requests with random prompts, each batch after the other. Loading the model is "
        "not timed. The prefix cache is off unless --enable-prefix-caching is given.",
    )
    group = parser.add_argument_group("latency")
    add_flags(group, fields(LatencyConfig))
    add_output_json(group)
    EngineArgs.add_cli_args(parser.add_argument_group("engine"))
    return parser


def run(options: argparse.Namespace) -> int:
    """Everything that can be refused without the model is refused before it is loaded."""
    config = from_flags(LatencyConfig, options)
    if not hasattr(options, "enable_prefix_caching"):
        options.enable_prefix_caching = False
    args = EngineArgs.from_cli_args(options)
    check_can_be_written("--output-json", options.output_json)
    from pelton.bench.latency import report, run_latency  # loads the engine, which help does without

    return tell(lambda: run_latency(config, args), report, options.output_json)
