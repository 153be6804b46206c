"""The page that Prometheus reads."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pelton.core.metrics import Counter, Gauge, Histogram
from pelton.engine.metrics import EngineMetrics
from pelton.server.metrics import CONTENT_TYPE, HELP, render_metrics

LABELS = {"model_name": "m", "engine": "0"}


def families(metrics, prefix="vllm"):
    return {one.name: one for one in text_string_to_metric_families(render_metrics(metrics, prefix).decode())}


def test_counters():
    metrics = [Counter("vllm:prompt_tokens", LABELS, 5), Counter("vllm:prompt_tokens", LABELS | {"engine": "1"}, 7)]
    text = render_metrics(metrics, "vllm").decode()
    assert 'vllm:prompt_tokens_total{engine="0",model_name="m"} 5.0\n' in text
    assert 'vllm:prompt_tokens_total{engine="1",model_name="m"} 7.0\n' in text
    assert text.count("# TYPE vllm:prompt_tokens_total counter\n") == 1
    assert f"# HELP vllm:prompt_tokens_total {HELP['prompt_tokens']}\n" in text


def test_more_labels():
    metrics = [
        Counter("vllm:request_success", LABELS | {"finished_reason": reason}, count)
        for reason, count in (("stop", 1), ("length", 2))
    ]
    samples = families(metrics)["vllm:request_success"].samples
    assert {sample.labels["finished_reason"]: sample.value for sample in samples} == {"stop": 1, "length": 2}


def test_gauges():
    (sample,) = families([Gauge("vllm:kv_cache_usage_perc", LABELS, 0.25)])["vllm:kv_cache_usage_perc"].samples
    assert (sample.name, sample.value, sample.labels) == ("vllm:kv_cache_usage_perc", 0.25, LABELS)


def test_histograms():
    histogram = Histogram("vllm:iteration_tokens_total", LABELS, 3, 7.5, {"1.0": 1, "5.0": 2, "+Inf": 3})
    family = families([histogram])["vllm:iteration_tokens_total"]
    values = {(sample.name.rpartition("_")[2], sample.labels.get("le")): sample.value for sample in family.samples}
    assert family.type == "histogram"
    assert values == {
        ("bucket", "1.0"): 1,
        ("bucket", "5.0"): 2,
        ("bucket", "+Inf"): 3,
        ("count", None): 3,
        ("sum", None): 7.5,
    }


def test_another_prefix():
    text = render_metrics([Gauge("vllm:num_requests_running", LABELS, 1.0)], "pelton").decode()
    assert 'pelton:num_requests_running{engine="0",model_name="m"} 1.0\n' in text
    assert "vllm" not in text


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "ünï", "a b{}"])
def test_any_name_of_a_model(name):
    (sample,) = families([Gauge("vllm:x", {"model_name": name}, 1.0)])["vllm:x"].samples
    assert sample.labels["model_name"] == name


def test_all_figures_of_the_engine_are_explained():
    metrics = EngineMetrics().snapshot("m", None)
    found = families(metrics)
    assert len(found) == len({metric.name for metric in metrics})
    for family in found.values():
        assert family.documentation == HELP[family.name.removeprefix("vllm:")]
    assert "vllm:iteration_tokens_total" in found


def test_no_figures():
    assert render_metrics([], "vllm") == b""
    assert CONTENT_TYPE.startswith("text/plain; version=")
