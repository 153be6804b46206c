"""`pelton bench roofline`: limits of this machine, and how near to them a model gets."""

import argparse
import sys
from dataclasses import fields

from pelton.bench.extras import need
from pelton.bench.result_files import check_can_be_written, write_json
from pelton.bench.roofline_config import RooflineConfig
from pelton.cli.messages import show
from pelton.cli.parser import CommandParser
from pelton.config import EngineArgs
from pelton.config.options import add_flags, from_flags

ENGINE_FLAGS = ("model", "revision", "dtype", "quantization", "kv_cache_dtype", "block_size", "num_threads")
"""What matters to a step of given requests."""


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="pelton bench roofline",
        description="Measure how fast this machine reads memory and multiplies, what decode steps of a model need of "
        "both, and how long they take.",
    )
    group = parser.add_argument_group("roofline")
    add_flags(group, fields(RooflineConfig))
    group.add_argument(
        "--output-json", metavar="FILE", help="where the report goes too; what the file has is overwritten"
    )
    group.add_argument("--plot", metavar="FILE.html", help="write a page with plots of the report; needs plotly")
    EngineArgs.add_cli_args(parser.add_argument_group("engine"), ENGINE_FLAGS)
    return parser


def run(options: argparse.Namespace) -> int:
    """Everything that can be refused without the model is refused before it is loaded."""
    if hasattr(options, "batch_sizes"):
        options.batch_sizes = tuple(options.batch_sizes)
    config = from_flags(RooflineConfig, options)
    args = EngineArgs.from_cli_args(options)
    check_can_be_written("--output-json", options.output_json)
    check_can_be_written("--plot", options.plot)
    if options.plot is not None:
        need("plotly", "--plot")
    from pelton.bench.roofline import run_roofline, text  # loads the model's parts, which help does without

    report = run_roofline(config, args, progress=sys.stderr.isatty())
    if options.output_json is not None:
        write_json(options.output_json, report)
    if options.plot is not None:
        from pelton.bench.plots import write_roofline_plot

        write_roofline_plot(options.plot, report)
    show(text(report))
    return 0
