"""`pelton bench serve`: a load on a server, from its flags to its figures."""

import asyncio
import gc
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from logging import getLogger
from time import perf_counter
from typing import Any, NamedTuple

import uvloop
from tqdm import tqdm

from pelton import envs
from pelton.bench.dataset_config import DatasetConfig, needs_tokenizer
from pelton.bench.datasets import make_with_warmups
from pelton.bench.requests import BenchRequest
from pelton.bench.serving.arrivals import arrival_times, rates, steady_arrival_times
from pelton.bench.serving.client import Client, open_session, request_body
from pelton.bench.serving.config import BenchServeConfig
from pelton.bench.serving.early_stop import reason_to_stop
from pelton.bench.serving.load import Load, LoadReport
from pelton.bench.serving.request_result import RequestResult
from pelton.bench.serving.result import Target, make_result
from pelton.bench.serving.server_info import ServerUnavailableError, find_server
from pelton.bench.serving.token_counts import fill_token_counts
from pelton.error_text import message_of, shown
from pelton.tokenizer import Tokenizer, open_tokenizer

INTERRUPTED = "interrupted"
"""`stopped` of a run that Ctrl-C has ended."""
_logger = getLogger(__name__)


class ServeOutcome(NamedTuple):
    """What was measured."""

    result: dict[str, Any]
    """The figures, under vLLM's names and more."""
    requests: list[RequestResult]
    """What they are made of."""


def run_serve(config: BenchServeConfig, dataset: DatasetConfig) -> ServeOutcome:
    """Ready check, warm-up, load and figures.

    The first Ctrl-C during the load ends it, and the figures are of what there is; `stopped` is then `INTERRUPTED`.
    Raises ValueError for what cannot be asked of this server, ServerUnavailableError if it does not answer.
    """
    _logger.info("Server: %s%s", config.server_url, config.request_path)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        target = runner.run(_find_target(config))
        tokenizer = _open_tokenizer(config, dataset, target)
        requests, others = make_with_warmups(dataset, tokenizer, config.num_warmups)
        bodies, warmups = (_bodies(config, target, some, tokenizer) for some in (requests, others))
        report = runner.run(_send_all(config, warmups, bodies, _due_times(config, dataset)))
    counted_by = fill_token_counts(report.results, requests, tokenizer)
    result = make_result(config, dataset, target, report, requests, counted_by=counted_by)
    return ServeOutcome(result, report.results)


def _headers(config: BenchServeConfig) -> list[tuple[str, str]]:
    """Those of the user; the key of the environment only where they have none."""
    key = envs.openai_api_key()
    has_own = any(name.lower() == "authorization" for name, _ in config.header)
    return [*config.header, *([("Authorization", f"Bearer {key}")] if key and not has_own else [])]


async def _find_target(config: BenchServeConfig) -> Target:
    url = config.server_url
    async with open_session(_headers(config)) as session:
        server = await find_server(session, url, patience=config.ready_check_timeout_sec)
    asked = config.served_model_name or config.model
    card = server.card(asked)
    if asked is None and card is None:
        raise ValueError(f"model is not given, and {url}/v1/models lists none; add --model")
    name = card.id if card else str(asked)
    root = config.model if config.served_model_name else card and card.root
    tokenizer_id = config.tokenizer or root or name
    return Target(url, name, tokenizer_id, server)


def _open_tokenizer(config: BenchServeConfig, dataset: DatasetConfig, target: Target) -> Tokenizer | None:
    """None if nobody needs it."""
    if config.tokenizer is None and not needs_tokenizer(dataset):
        return None
    try:
        return open_tokenizer(target.tokenizer_id)
    except ValueError as error:
        if config.tokenizer is not None:
            raise ValueError(f"--tokenizer: {message_of(error)}") from None
        raise ValueError(
            f"dataset {dataset.dataset_name} needs the model's tokenizer, but {shown(target.tokenizer_id)}, as the "
            f"server calls the model, cannot be opened here: {message_of(error)}; name the model with --tokenizer, or "
            "choose --dataset-name builtin"
        ) from None


def _bodies(
    config: BenchServeConfig, target: Target, requests: Sequence[BenchRequest], tokenizer: Tokenizer | None
) -> list[bytes]:
    """Encoded before the run, in which the client shall do as little as possible."""
    fields = {
        "model": target.model,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "min_p": config.min_p,
        "ignore_eos": config.ignore_eos or None,
    }
    given = {name: value for name, value in fields.items() if value is not None} | dict(config.extra_body or {})
    return [request_body(request, given, is_chat=config.is_chat, tokenizer=tokenizer) for request in requests]


def _due_times(config: BenchServeConfig, dataset: DatasetConfig) -> list[float]:
    number = dataset.num_prompts
    if config.ramp_up_strategy is not None:
        assert config.ramp_up_start_rps is not None
        assert config.ramp_up_end_rps is not None
        changing = rates(
            number, strategy=config.ramp_up_strategy, start=config.ramp_up_start_rps, end=config.ramp_up_end_rps
        )
        return arrival_times(changing, burstiness=config.burstiness, seed=dataset.seed)
    return steady_arrival_times(config.request_rate, number, burstiness=config.burstiness, seed=dataset.seed)


async def _send_all(
    config: BenchServeConfig, warmups: Sequence[bytes], bodies: Sequence[bytes], due_times: Sequence[float]
) -> LoadReport:
    """What is measured finds the connections open that the warm-up has opened."""
    async with open_session(_headers(config)) as session:
        client = Client(session, config.server_url + config.request_path, timeout=config.request_timeout)
        if warmups:
            await _warm_up(config, client, warmups)
        return await _measure(config, Load(client, bodies, due_times, max_concurrency=config.max_concurrency))


async def _warm_up(config: BenchServeConfig, client: Client, bodies: Sequence[bytes]) -> None:
    _logger.info("Warming up with %d requests", len(bodies))
    load = Load(client, bodies, [0.0] * len(bodies), max_concurrency=config.max_concurrency)
    report = await load.run(max_seconds=config.max_seconds)
    for result in report.results:
        if not result.success:
            raise ServerUnavailableError(f"a request of the warm-up failed: {result.error}")


async def _measure(config: BenchServeConfig, load: Load) -> LoadReport:
    def proof() -> str | None:
        now = perf_counter() - load.epoch
        return reason_to_stop(
            config.stop_when,
            load.results,
            load.in_flight,
            num_failed=load.num_failed,
            now=now,
            request_timeout=config.request_timeout,
            max_seconds=config.max_seconds,
        )

    progress = tqdm(total=len(load.results), unit="req", leave=False, disable=config.disable_tqdm or None)
    with progress, _stopped_by_ctrl_c(load), _without_pauses():
        return await load.run(
            max_seconds=config.max_seconds,
            on_answer=lambda _: progress.update(),
            reason_to_stop=proof if config.stop_when else None,
        )


@contextmanager
def _stopped_by_ctrl_c(load: Load) -> Iterator[None]:
    """The first one ends the load; the next one is as usual."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        load.stop(INTERRUPTED)

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def _without_pauses() -> Iterator[None]:
    """What exists already is left out of garbage collections, which would be long."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
