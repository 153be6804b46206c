"""The page that Prometheus reads."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from pelton.core.metrics import Counter, Gauge, Histogram, Metric

CONTENT_TYPE = CONTENT_TYPE_LATEST

HELP: Mapping[str, str] = {
    "num_requests_running": "Requests that are part of the steps of an engine core.",
    "num_requests_waiting": "Requests that wait to run.",
    "kv_cache_usage_perc": "Share of the KV-cache blocks that running requests hold; 1 is all of them.",
    "prefix_cache_queries": "Prompt tokens that were looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens that were found in the prefix cache.",
    "num_preemptions": "Requests that were sent back to wait since the KV cache was full.",
    "prompt_tokens": "Prompt tokens of requests that got their first token.",
    "prompt_tokens_cached": "Those of them that came from the prefix cache.",
    "generation_tokens": "Tokens that were generated.",
    "request_success": "Requests that ended, by reason: stop, length, abort or error.",
    "time_to_first_token_seconds": "Seconds from a request's arrival to its first token.",
    "inter_token_latency_seconds": "Seconds between two steps that gave a request tokens.",
    "request_time_per_output_token_seconds": "Seconds per token of a request, after its first one.",
    "e2e_request_latency_seconds": "Seconds from a request's arrival to its end.",
    "request_queue_time_seconds": "Seconds that a request waited to run.",
    "request_prefill_time_seconds": "Seconds from a request's start to its first token.",
    "request_decode_time_seconds": "Seconds from a request's first token to its last.",
    "request_prompt_tokens": "Prompt tokens of a request.",
    "request_generation_tokens": "Tokens that were generated for a request.",
    "iteration_tokens_total": "Tokens that a step computed, of all its requests.",
    "spec_decode_num_drafts": "Drafts that were judged in speculative decoding.",
    "spec_decode_num_draft_tokens": "Tokens of these drafts.",
    "spec_decode_num_accepted_tokens": "Tokens of these drafts that were accepted.",
    "spec_decode_num_accepted_tokens_per_pos": "Tokens that were accepted, by their position in the draft.",
}
"""Figure, without what stands before the colon of its name, -> what Prometheus shows for it."""

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


def render_metrics(metrics: Iterable[Metric], prefix: str) -> bytes:
    """The page's text. `prefix` takes the place of what stands before the colon of names."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(metrics, prefix))
    return generate_latest(registry)


class _Page(Collector):
    def __init__(self, metrics: Iterable[Metric], prefix: str) -> None:
        self._metrics = metrics
        self._prefix = prefix

    def describe(self) -> Iterable[_Family]:
        return ()

    def collect(self) -> Iterator[_Family]:
        families: dict[str, _Family] = {}
        for metric in self._metrics:
            name = metric.name.rpartition(":")[2]
            family = families.get(name)
            if family is None:
                family = families[name] = self._family(metric, name)
            _add(family, metric)
        yield from families.values()

    def _family(self, metric: Metric, name: str) -> _Family:
        full_name, text = f"{self._prefix}:{name}", HELP.get(name, name.replace("_", " "))
        kinds: dict[type[Metric], type[_Family]] = {
            Counter: CounterMetricFamily,
            Gauge: GaugeMetricFamily,
            Histogram: HistogramMetricFamily,
        }
        return kinds[type(metric)](full_name, text, labels=list(metric.labels))


def _add(family: _Family, metric: Metric) -> None:
    labels = list(metric.labels.values())
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(metric, Histogram)
        family.add_metric(labels, list(metric.buckets.items()), metric.sum)
    else:
        assert isinstance(metric, Counter | Gauge)
        family.add_metric(labels, metric.value)
