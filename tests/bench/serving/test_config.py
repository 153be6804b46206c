import argparse
import math
from dataclasses import fields

import pytest

from pelton.bench.bounds import parse_bound
from pelton.bench.serving.config import BenchServeConfig
from pelton.config.options import add_flags, from_flags


def parse(*flags):
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser, fields(BenchServeConfig))
    return from_flags(BenchServeConfig, parser.parse_args(list(flags)))


def test_flags_with_values_of_their_own_kind():
    config = parse(
        "--header", "X-A=b=c", "--header", "Authorization=Bearer x",
        "--goodput", "ttft:200", "e2el:2000.5",
        "--stop-when", "p99_e2el_ms>500", "--stop-when", "failed>0",
        "--metadata", "a=1", "b=",
        "--extra-body", '{"seed": 3}',
        "--request-rate", "inf", "--save-result",
    )  # fmt: skip
    assert config.header == [("X-A", "b=c"), ("Authorization", "Bearer x")]
    assert config.goodput == [("ttft", 200.0), ("e2el", 2000.5)]
    assert config.stop_when == [parse_bound("p99_e2el_ms>500"), parse_bound("failed>0")]
    assert config.metadata == [("a", "1"), ("b", "")]
    assert config.extra_body == {"seed": 3}
    assert math.isinf(config.request_rate)


@pytest.mark.parametrize(
    ("flags", "url"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"host": "::1", "port": 80}, "http://[::1]:80"),
        ({"base_url": "https://example.org/v1/"}, "https://example.org"),
        ({"base_url": "http://example.org:81/a/b"}, "http://example.org:81/a/b"),
    ],
)
def test_where_the_server_is(flags, url):
    assert BenchServeConfig(**flags).server_url == url


def test_paths_of_the_backends():
    assert BenchServeConfig().request_path == BenchServeConfig(backend="vllm").request_path == "/v1/completions"
    assert BenchServeConfig(backend="openai-chat").request_path == "/v1/chat/completions"
    assert BenchServeConfig(endpoint="/x").request_path == "/x"


def test_names_and_numbers_between_commas():
    config = BenchServeConfig(percentile_metrics="ttft, e2el", metric_percentiles="50,99.9, 50")
    assert config.latencies == ["ttft", "e2el"]
    assert config.percentiles == [50.0, 99.9]


def test_keys_are_not_shown():
    assert "secret" not in repr(BenchServeConfig(header=[("Authorization", "secret")]))


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"backend": "tgi"}, "backend must be one of"),
        ({"base_url": "localhost:8000"}, "base_url must be such as"),
        ({"base_url": "http://127.0.0.1:8000", "port": 1}, "base_url is given, and host or port too"),
        ({"burstiness": 2.0}, "burstiness is given, but all requests are sent at once"),
        ({"save_result": True, "append_result": True}, "save_result and append_result are both given"),
        ({"append_result": True}, "append_result needs the name of a file"),
        ({"base_url": "ftp://x"}, "base_url must be such as"),
        ({"host": "a b"}, "host must be an address"),
        ({"host": ""}, "host must be an address"),
        ({"host": "http://x"}, "--base-url takes whole URLs"),
        ({"port": 0}, "port must be at least 1"),
        ({"port": 70000}, "port must be at most 65535"),
        ({"endpoint": "v1"}, "endpoint must begin with /"),
        ({"header": [("A B", "c")]}, "is no header"),
        ({"header": [("A", "c\r\nX: y")]}, "is no header"),
        ({"request_rate": 0.0}, "request_rate must be above 0, got 0"),
        ({"request_rate": math.nan}, "request_rate must be above 0"),
        ({"burstiness": -1.0}, "burstiness must be above 0, got -1"),
        ({"burstiness": math.inf}, "burstiness must be a finite number"),
        ({"max_concurrency": 0}, "max_concurrency must be at least 1"),
        ({"num_warmups": -1}, "num_warmups must be at least 0"),
        ({"ready_check_timeout_sec": -1.0}, "ready_check_timeout_sec must be at least 0"),
        ({"request_timeout": 0.0}, "request_timeout must be above 0"),
        ({"max_seconds": -2.0}, "max_seconds must be above 0"),
        ({"max_seconds": math.nan}, "max_seconds must be a finite number"),
        ({"ramp_up_start_rps": 1.0}, "without ramp_up_strategy"),
        ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0}, "needs ramp_up_end_rps"),
        ({"ramp_up_strategy": "steep"}, "ramp_up_strategy must be one of"),
        (
            {"ramp_up_strategy": "linear", "ramp_up_start_rps": 0.0, "ramp_up_end_rps": 1.0},
            "ramp_up_start_rps must be above 0",
        ),
        (
            {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 2.0, "request_rate": 3.0},
            "request_rate and ramp_up_strategy are both given",
        ),
        ({"temperature": math.nan}, "temperature must be a finite number"),
        ({"extra_body": {"stream": False}}, "extra_body has stream"),
        ({"percentile_metrics": "ttft,e2e"}, "percentile_metrics must be one of"),
        ({"percentile_metrics": ""}, "percentile_metrics must be one of"),
        ({"metric_percentiles": "50,101"}, "metric_percentiles must be numbers from 0 to 100"),
        ({"metric_percentiles": "x"}, "metric_percentiles must be numbers"),
        ({"goodput": [("itl", 5.0)]}, "goodput must be one of ttft, tpot, e2el"),
        ({"goodput": [("ttft", -5.0)]}, "goodput of ttft must be at least 0"),
        ({"goodput": [("ttft", 5.0), ("ttft", 6.0)]}, "goodput has a latency twice"),
        ({"stop_when": [parse_bound("p99_e2el_ms<500")]}, "must say > or >="),
        ({"stop_when": [parse_bound("p99_itl_ms>5")]}, "only the end can tell"),
        ({"stop_when": [parse_bound("std_ttft_ms>5")]}, "only the end can tell"),
        ({"stop_when": [parse_bound("output_throughput>5")]}, "only the end can tell"),
        ({"save_detailed": True}, "no result is saved; add --save-result"),
        ({"result_dir": "x"}, "no result is saved"),
        ({"metadata": [("a", "b")]}, "no result is saved"),
        ({"metadata": [("ttfts", "b")]}, "metadata has 'ttfts', which is an entry of results"),
        ({"metadata": [("p12.5_itl_ms", "b")]}, "metadata has 'p12.5_itl_ms', which is an entry of results"),
        ({"metadata": [("a", "1"), ("b", "2"), ("a", "2")]}, "metadata has 'a' twice; give each key one value"),
    ],
)
def test_values_that_are_refused(flags, complaint):
    with pytest.raises(ValueError, match=complaint):
        BenchServeConfig(**flags)


@pytest.mark.parametrize(
    "flags",
    [
        ["--header", "abc"],
        ["--header", "=abc"],
        ["--goodput", "ttft=5"],
        ["--goodput", "ttft"],
        ["--stop-when", "fast"],
        ["--extra-body", "[1]"],
        ["--extra-body", "{"],
        ["--request-rate", "often"],
    ],
)
def test_texts_that_are_refused(flags):
    with pytest.raises(argparse.ArgumentError):
        parse(*flags)
