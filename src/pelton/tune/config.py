"""What `pelton tune` is asked for, and its flags."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pelton.bench.dataset_config import DatasetConfig, needs_tokenizer
from pelton.bench.serving.config import BACKENDS
from pelton.checks import check_choice, check_flag, check_integer, finite_float
from pelton.config.options import check_positive, option
from pelton.error_text import shown
from pelton.tune.goal import Goal, make_goal
from pelton.tune.serve_flags import parse_serve_flags

NUM_PROMPTS = 100
"""By default: each trial sends them all, at least once."""


@dataclass(frozen=True)
class TuneOptions:
    """What is sought, how long, and where the log is."""

    slo: Sequence[str] = option(
        (),
        "Service-level objective, the bound of a latency that `pelton bench serve` measures, such as "
        "'p99_e2el_ms<500'; repeatable, all must hold.",
        action="append",
        type=str,
        metavar="BOUND",
    )
    maximize: str | None = option(
        None,
        "Throughput to be as high as possible: output_throughput, total_token_throughput or request_throughput. "
        "Default: output_throughput, unless request_rate is given.",
        type=str,
        metavar="METRIC",
    )
    minimize: str | None = option(
        None,
        "Latency to be as low as possible, such as p50_ttft_ms. Default with request_rate: that of the first slo.",
        type=str,
        metavar="METRIC",
    )
    request_rate: float | None = option(
        None,
        "Requests per second, at random moments. Default, without max_concurrency: each trial seeks the highest rate "
        "that meets the slo, and is judged by the throughput with it.",
        type=float,
    )
    max_concurrency: int | None = option(
        None, "Put load on the server by so many clients, each of which sends one request after the other.", type=int
    )
    backend: str = option("openai", "As of `pelton bench serve`: openai or openai-chat.", choices=BACKENDS)
    ignore_eos: bool = option(
        False, "Go on after the end-of-sequence token, so that every answer has the length of its request."
    )
    num_warmups: int = option(1, "Requests before each measurement: other ones of the same dataset.")
    search: Sequence[str] = option(
        (),
        "Values to try of a flag of `pelton serve`, as NAME=VALUE,VALUE, besides its default; repeatable. Default: "
        "some of max_num_seqs, max_num_batched_tokens, long_prefill_token_threshold, quantization, num_threads and "
        "data_parallel_size.",
        action="append",
        type=str,
        metavar="NAME=VALUES",
    )
    trials: int = option(
        24, "Most trials in all, those of the log included; those of it that failed are tried once more besides."
    )
    max_minutes: float = option(
        60.0,
        "Minutes for all. A part of them is kept for what is measured again at the end; a trial that is not done "
        "before that is left out.",
    )
    confirm_rounds: int = option(
        3,
        "How often the best and the default settings are measured again, in turn. The best must keep the slo always.",
    )
    output_dir: str = option("pelton-tune", "Folder of the log; a search goes on where its log ends.", metavar="FOLDER")
    plot: str | None = option(None, "Draw the trials into this HTML file.", type=str, metavar="FILE")

    def __post_init__(self) -> None:
        if self.request_rate is not None:
            check_positive(self, "request_rate")
            if self.max_concurrency is not None:
                raise ValueError("request_rate and max_concurrency are both given; leave one of them out")
        if self.max_concurrency is not None:
            check_integer("max_concurrency", self.max_concurrency, low=1)
        check_choice("backend", self.backend, BACKENDS)
        check_flag("ignore_eos", self.ignore_eos)
        check_integer("num_warmups", self.num_warmups, low=0)
        check_integer("trials", self.trials, low=1)
        if finite_float("max_minutes", self.max_minutes) <= 0:
            raise ValueError(f"max_minutes must be above 0, got {self.max_minutes}")
        check_integer("confirm_rounds", self.confirm_rounds, low=0)
        if self.is_rate_sought and not self.slo:
            raise ValueError(
                "there is no --slo, so that no request rate would be too high; give one, such as --slo "
                "'p99_e2el_ms<500', or --request-rate or --max-concurrency"
            )
        if self.is_rate_sought and self.minimize is not None:
            raise ValueError(
                "--minimize is given, but the highest request rate is sought; make it an --slo, or give "
                "--request-rate or --max-concurrency"
            )

    @property
    def is_rate_sought(self) -> bool:
        return self.request_rate is None and self.max_concurrency is None


@dataclass(frozen=True)
class TuneConfig:
    """A search: everything that is asked for."""

    model: str
    options: TuneOptions
    dataset: DatasetConfig
    serve_flags: Sequence[str] = ()
    """Of all servers that are tried."""
    goal: Goal = field(init=False)
    fixed: dict[str, Any] = field(init=False)
    """Fields that `serve_flags` give."""

    def __post_init__(self) -> None:
        options = self.options
        if not self.model or self.model.startswith("-"):
            raise ValueError(f"MODEL must be a model, got {shown(self.model)}")
        has_rate = options.request_rate is not None
        goal = make_goal(options.slo, options.maximize, options.minimize, has_request_rate=has_rate)
        object.__setattr__(self, "goal", goal)
        self._check_plot()
        try:
            object.__setattr__(self, "fixed", parse_serve_flags(self.serve_flags))
        except ValueError as error:
            raise ValueError(f"the flags after --: {error}") from None
        if "revision" in self.fixed and needs_tokenizer(self.dataset):
            raise ValueError(
                "the flags after --: --revision is given, but prompts are made of tokens by the main revision's "
                "tokenizer; give the folder of that revision as MODEL, or take a dataset of texts, such as "
                "--dataset-name builtin"
            )

    def _check_plot(self) -> None:
        """Before the search, at whose end it would be too late."""
        path = self.options.plot
        if path is None:
            return
        if self.goal.latency is None:
            raise ValueError("--plot shows throughput over a latency; give an --slo of one, such as 'p99_e2el_ms<500'")
        if not Path(path).resolve().parent.is_dir() or Path(path).is_dir():
            raise ValueError(f"--plot must be a file in a folder that exists, got {shown(path)}")

    @property
    def folder(self) -> Path:
        return Path(self.options.output_dir)

    def as_study(self, space: dict[str, Any], machine: dict[str, Any]) -> dict[str, Any]:
        """What makes trials comparable, as plain data."""
        options = self.options
        return {
            "model": self.model,
            "slo": [str(slo) for slo in self.goal.slos],
            "objective": f"{'maximize' if self.goal.is_maximized else 'minimize'} {self.goal.objective}",
            "request_rate": "sought" if options.is_rate_sought else options.request_rate,
            "max_concurrency": options.max_concurrency,
            "backend": options.backend,
            "ignore_eos": options.ignore_eos,
            "num_warmups": options.num_warmups,
            "dataset": asdict(self.dataset),
            "serve_flags": list(self.serve_flags),
            "search": space,
            "machine": machine,
        }
