"""`pelton tune`: find the settings of a server that serve a workload best."""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from pelton.bench.dataset_config import add_dataset_flags, dataset_from_flags
from pelton.bench.extras import need
from pelton.bench.result_files import write_json
from pelton.cli.messages import note, show
from pelton.cli.parser import CommandParser
from pelton.config.options import add_flags, from_flags
from pelton.tune.config import NUM_PROMPTS, TuneConfig, TuneOptions

if TYPE_CHECKING:
    from pelton.tune.study import Outcome

_DESCRIPTION = (
    "Find the settings of `pelton serve` that serve a workload best within service-level objectives: servers are "
    "started one after the other on this machine, and `pelton bench serve` puts the load on each. Flags of pelton "
    "serve that all of them shall have follow after --. Exit status: 0, 1 if no settings can be recommended, 2 for a "
    "mistake in what was asked, 130 after Ctrl-C, which keeps what was measured."
)
_EPILOG = (
    "example: pelton tune smollm2 --slo 'p99_e2el_ms<2000' --input-len 128 --output-len 64 --search max_num_seqs=16,64 "
    "-- --max-model-len 2048"
)


class _Parser(CommandParser):
    """What follows after -- is left alone."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        given = list(args or ())
        end = given.index("--") if "--" in given else len(given)
        options, unknown = super().parse_known_args(given[:end], namespace)
        options.serve_flags = given[end + 1 :]
        return options, unknown


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="pelton tune",
        usage="pelton tune MODEL [--slo BOUND] [options] [-- flags of pelton serve]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        conflict_handler="resolve",
    )
    parser.add_argument("model", metavar="MODEL", help="the model to serve: an alias, a path or a hub id")
    add_flags(parser.add_argument_group("search"), fields(TuneOptions))
    dataset = parser.add_argument_group("dataset")
    add_dataset_flags(dataset)
    help_text = f"Requests of each load. Default: {NUM_PROMPTS}."
    dataset.add_argument("--num-prompts", type=int, default=NUM_PROMPTS, help=help_text)  # fewer than usual
    return parser


def run(options: argparse.Namespace) -> int:
    """Everything that can be refused without a server is refused before one is started."""
    config = TuneConfig(
        model=options.model,
        options=from_flags(TuneOptions, options),
        dataset=dataset_from_flags(options),
        serve_flags=options.serve_flags,
    )
    need("optuna", "pelton tune")
    need("aiohttp", "pelton tune")
    plot = config.options.plot
    if plot is not None:
        need("plotly", "--plot")
    from pelton.tune.study import run_tune

    outcome = run_tune(config, tell=note)
    show(outcome.report.text())
    _write_files(config, outcome)
    if outcome.is_interrupted:
        note(f"Interrupted; the same command goes on with {config.folder / 'trials.jsonl'}")
        return 130
    return 0 if outcome.report.recommended is not None else 1


def _write_files(config: TuneConfig, outcome: "Outcome") -> None:
    report = config.folder / "report.json"
    write_json(report, outcome.report.as_plain())
    note(f"Log: {config.folder / 'trials.jsonl'}; report: {report}")
    if config.options.plot is not None:
        outcome.report.write_plot(config.options.plot, config.model)
        note(f"Plot: {config.options.plot}")
