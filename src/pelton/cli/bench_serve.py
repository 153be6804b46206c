"""`pelton bench serve`: latencies and throughput of a server, under a load over time."""

import argparse
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING

from pelton.bench.dataset_config import add_dataset_flags, dataset_from_flags
from pelton.bench.extras import need
from pelton.bench.result_files import check_can_be_written
from pelton.bench.serving.config import BenchServeConfig
from pelton.bench.serving.files import details, make_place, result_path, save_result
from pelton.cli.messages import complain, note, show
from pelton.cli.parser import CommandParser
from pelton.config.options import add_flags, from_flags

if TYPE_CHECKING:
    from pelton.bench.serving.run import ServeOutcome

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
        make_place(config)
    from pelton.bench.serving.report import serve_report
    from pelton.bench.serving.run import INTERRUPTED, run_serve
    from pelton.bench.serving.server_info import ServerUnavailableError

    try:
        outcome = run_serve(config, dataset)
    except ServerUnavailableError as error:
        complain(str(error))
        return 1
    num_unwritten = sum(not _is_written(write, config, outcome) for write in (_save, _plot))
    show(serve_report(outcome.result, latencies=config.latencies, percentiles=config.percentiles))
    if outcome.result["stopped"] == INTERRUPTED:
        return 130
    return 1 if outcome.result["failed"] or num_unwritten else 0


def _is_written(
    write: Callable[[BenchServeConfig, "ServeOutcome"], None], config: BenchServeConfig, outcome: "ServeOutcome"
) -> bool:
    """What cannot be written is told, and keeps nobody from the rest of what was measured."""
    try:
        write(config, outcome)
    except OSError as error:
        complain(f"{error.filename or 'a file'} cannot be written: {error.strerror or error}")
        return False
    return True


def _save(config: BenchServeConfig, outcome: "ServeOutcome") -> None:
    if config.saves:
        path = result_path(config, outcome.result)
        result = {**outcome.result, **(details(outcome.requests) if config.save_detailed else {})}
        save_result(path, result, append=config.append_result)
        note(f"Result: {path}")


def _plot(config: BenchServeConfig, outcome: "ServeOutcome") -> None:
    if config.plot is not None:
        from pelton.bench.plots import write_serve_plot

        write_serve_plot(config.plot, outcome.result, outcome.requests)
        note(f"Plot: {config.plot}")
