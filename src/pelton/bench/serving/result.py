"""The result of a benchmark of a server: what was asked for, the figures, and what one must know of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from math import isinf
from typing import Any

from pelton.bench.dataset_config import DATASETS, DatasetConfig
from pelton.bench.machine import describe_machine
from pelton.bench.requests import BenchRequest
from pelton.bench.serving.arrivals import offered_rate
from pelton.bench.serving.cache_reuse import num_reused
from pelton.bench.serving.config import BenchServeConfig
from pelton.bench.serving.load import LoadReport
from pelton.bench.serving.request_result import RequestResult
from pelton.bench.serving.server_info import ServerInfo
from pelton.bench.serving.statistics import client_figures, failures, goodput, latency_figures, throughput_figures

BUSY_SHARE = 0.8
LATE_MS = 50.0
"""From these on, the load generator's own limits may be in what was measured."""


@dataclass(frozen=True)
class Target:
    """Whom requests are for."""

    url: str
    model: str
    """The name in requests."""
    tokenizer_id: str
    server: ServerInfo


def make_result(
    config: BenchServeConfig,
    dataset: DatasetConfig,
    target: Target,
    report: LoadReport,
    requests: Sequence[BenchRequest],
    *,
    counted_by: str,
) -> dict[str, Any]:
    """A JSON object, whose keys are vLLM's where it has them. Latencies are None where no request was completed."""
    result = {
        **_description(config, dataset, target),
        **_figures(config, report),
        "counted_by": counted_by,
        "server": {"url": target.url, "header": target.server.header, "version": target.server.version},
        "machine": describe_machine(),
    }
    result["warnings"] = warnings_of(config, dataset, result, requests, report.results)
    return result | dict(config.metadata)


def _description(config: BenchServeConfig, dataset: DatasetConfig, target: Target) -> dict[str, Any]:
    """What was asked for."""
    description: dict[str, Any] = {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": config.backend,
        "backend": config.backend,
        "label": config.label,
        "model_id": target.model,
        "tokenizer_id": target.tokenizer_id,
        "num_prompts": dataset.num_prompts,
        "dataset": _of_chosen_dataset(dataset),
        "request_rate": "inf" if isinf(config.request_rate) else config.request_rate,
        "burstiness": config.burstiness,
        "max_concurrency": config.max_concurrency,
        "settings": _settings(config),
    }
    if config.ramp_up_strategy is not None:
        names = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
        description |= {name: getattr(config, name) for name in names}
    return description


def _settings(config: BenchServeConfig) -> dict[str, Any]:
    """All flags but the headers, which may have keys, as JSON has them."""
    settings = {one.name: getattr(config, one.name) for one in fields(config) if one.name != "header"}
    rate = "inf" if isinf(config.request_rate) else config.request_rate
    return settings | {"request_rate": rate, "stop_when": list(map(str, config.stop_when))}


def _of_chosen_dataset(dataset: DatasetConfig) -> dict[str, Any]:
    others = tuple(f"{name}_" for name in DATASETS if name != dataset.dataset_name)
    return {name: value for name, value in asdict(dataset).items() if not name.startswith(others)}


def _figures(config: BenchServeConfig, report: LoadReport) -> dict[str, Any]:
    results, duration = report.results, report.duration
    figures = {
        "offered_request_rate": offered_rate([result.due_time for result in results]),
        "duration": duration,
        "stopped": report.stopped,
        **throughput_figures(results, duration),
        "max_concurrent_requests": report.max_in_flight,
        "failures": failures(results),
        **latency_figures(results, config.latencies, config.percentiles),
    }
    if config.goodput:
        figures["request_goodput"] = goodput(results, dict(config.goodput), duration)
    return figures | client_figures(
        cpu_seconds=report.client_cpu_seconds,
        duration=duration,
        num_tokens=figures["total_output_tokens"],
        send_delays=report.send_delays,
        waits=report.waits,
    )


def warnings_of(
    config: BenchServeConfig,
    dataset: DatasetConfig,
    result: Mapping[str, Any],
    requests: Sequence[BenchRequest],
    results: Sequence[RequestResult],
) -> list[str]:
    """What one must know of the figures before one believes them."""
    return [
        *_of_client(config, result),
        *_of_counts(result),
        *_of_answers(config, requests, results),
        *_of_cache(dataset, requests, results),
    ]


def _of_client(config: BenchServeConfig, result: Mapping[str, Any]) -> Iterator[str]:
    if result["client_cpu_share"] > BUSY_SHARE:
        yield (
            f"the load generator was busy for {result['client_cpu_share']:.0%} of the time, so its own limits may be "
            "in these figures; run it on another machine, or lower the load"
        )
    late = result["p99_send_delay_ms"]
    has_schedule = not isinf(config.request_rate) or config.ramp_up_strategy is not None
    if has_schedule and late is not None and late > LATE_MS:
        yield f"1 % of the requests were sent {late:.0f} ms late or more: the load was not the one asked for"


def _of_counts(result: Mapping[str, Any]) -> Iterator[str]:
    if result["counted_by"] != "usage":
        yield f"the server does not say how many tokens an answer has; they are counted by {result['counted_by']}"
    if result["total_input_tokens"] is None:
        yield (
            "the server does not say how many tokens a prompt has, so the number of input tokens is not known; "
            "--tokenizer names the model that counts them"
        )


def _of_answers(
    config: BenchServeConfig, requests: Sequence[BenchRequest], results: Sequence[RequestResult]
) -> Iterator[str]:
    num_blank = sum(result.output_len > 1 and not result.text and not result.itls for result in results)
    if num_blank:
        yield f"{num_blank} answers have tokens without any text: their ttft is the time to their end"
    if config.ignore_eos:
        num_other = sum(
            result.success and result.output_len != request.output_len
            for request, result in zip(requests, results, strict=True)
        )
        if num_other:
            yield f"{num_other} answers have not as many tokens as asked for, though ignore_eos is set"


def _of_cache(
    dataset: DatasetConfig, requests: Sequence[BenchRequest], results: Sequence[RequestResult]
) -> Iterator[str]:
    reused = num_reused(dataset, requests, results)
    if reused:
        remedy = "" if dataset.dataset_path or dataset.dataset_name == "builtin" else ", or give another --seed"
        yield (
            f"most of {reused} prompts came from the server's prefix cache, which the dataset does not mean to: they "
            f"were sent to it before; start the server anew{remedy}"
        )
