"""`pelton bench throughput`: tokens per second for many requests at once."""

import argparse
import sys
from dataclasses import fields

from pelton.bench.dataset_config import add_dataset_flags, dataset_from_flags
from pelton.bench.result_files import check_can_be_written
from pelton.bench.throughput_config import ThroughputConfig
from pelton.cli.bench_offline import add_output_json, tell
from pelton.cli.parser import CommandParser
from pelton.config import EngineArgs
from pelton.config.options import add_flags, from_flags


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="pelton bench throughput",
        description="Time the engine with all requests of a dataset at once. Loading the model and warming up are not "
        "timed. Outputs do not end before they have as many tokens as the dataset says.",
    )
    group = parser.add_argument_group("throughput")
    add_flags(group, fields(ThroughputConfig))
    add_output_json(group)
    add_dataset_flags(parser.add_argument_group("dataset"))
    EngineArgs.add_cli_args(parser.add_argument_group("engine"))
    return parser


def run(options: argparse.Namespace) -> int:
    """Everything that can be refused without the model is refused before it is loaded."""
    config, dataset = from_flags(ThroughputConfig, options), dataset_from_flags(options)
    args = EngineArgs.from_cli_args(options)
    check_can_be_written("--output-json", options.output_json)
    from pelton.bench.throughput import report, run_throughput  # loads the engine, which help does without

    return tell(
        lambda: run_throughput(config, dataset, args, use_tqdm=sys.stderr.isatty()), report, options.output_json
    )
