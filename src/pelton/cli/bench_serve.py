"""`pelton bench serve`: latencies and throughput of a server, under a load over time."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from pelton.bench.dataset_config import add_dataset_flags, dataset_from_flags
from pelton.bench.extras import need
from pelton.bench.result_files import check_can_be_written
from pelton.bench.serve_config import BenchServeConfig
from pelton.cli.messages import complain, note, show
from pelton.cli.parser import CommandParser
from pelton.config.options import add_flags, from_flags

if TYPE_CHECKING:
    from pelton.bench.serve import ServeOutcome

_DESCRIPTION = (
    "Send requests to a server with OpenAI's interface, and measure latencies and throughput. Figures go to standard "
    "output. Exit status: 0, 1 if the server does not answer or a request failed, 2 for a mistake in what was asked, "
    "130 after Ctrl-C, which ends the run and shows what there is."
)


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="pelton bench serve", description=_DESCRIPTION)
    add_flags(parser.add_argument_group("server and load"), fields(BenchServeConfig))
    add_dataset_flags(parser.add_argument_group("dataset"))
    return parser


def run(options: argparse.Namespace) -> int:
    """Everything that can be refused without the server is refused before a request is sent."""
    config, dataset = from_flags(BenchServeConfig, options), dataset_from_flags(options)
    need("aiohttp", "pelton bench serve")
    if config.plot is not None:
        need("plotly", "--plot")
        check_can_be_written("--plot", config.plot)
    if config.saves:
        Path(config.result_dir or ".").mkdir(parents=True, exist_ok=True)
    from pelton.bench.report import serve_report
    from pelton.bench.serve import INTERRUPTED, run_serve
    from pelton.bench.server_info import ServerUnavailableError

    try:
        outcome = run_serve(config, dataset)
    except ServerUnavailableError as error:
        complain(str(error))
        return 1
    show(serve_report(outcome.result, latencies=config.latencies, percentiles=config.percentiles))
    _write_files(config, outcome)
    if outcome.result["stopped"] == INTERRUPTED:
        return 130
    return 1 if outcome.result["failed"] else 0


def _write_files(config: BenchServeConfig, outcome: "ServeOutcome") -> None:
    from pelton.bench.serve_files import details, result_path, save_result

    if config.saves:
        path = result_path(config, outcome.result)
        result = {**outcome.result, **(details(outcome.requests) if config.save_detailed else {})}
        save_result(path, result, append=config.append_result)
        note(f"Result: {path}")
    if config.plot is not None:
        from pelton.bench.plots import write_serve_plot

        write_serve_plot(config.plot, outcome.result, outcome.requests)
        note(f"Plot: {config.plot}")
