"""The command line of a load, and what comes back."""

import json
from dataclasses import replace

import pytest

from pelton.bench.dataset_config import DatasetConfig, dataset_from_flags
from pelton.bench.serving.config import BenchServeConfig
from pelton.cli.bench_serve import make_parser
from pelton.config.options import from_flags
from pelton.tune.goal import make_goal
from pelton.tune.server import ProcessError
from pelton.tune.workload import Workload, make_load, measure_load

SLOS = ["p99.5_e2el_ms<500", "p90_itl_ms<=20", "std_e2el_ms<=90"]
GOAL = make_goal(SLOS, None, None, has_request_rate=False)
DATASET = DatasetConfig(random_input_len=64, random_output_len=32, num_prompts=24, seed=3, no_oversample=True)


def parsed(workload, tmp_path, request_rate=None, *, stop_early=True):
    """What `pelton bench serve` makes of the arguments."""
    arguments = workload.arguments(8123, tmp_path / "load.json", request_rate, 12.34, stop_early=stop_early)
    options = make_parser().parse_args(arguments)
    return from_flags(BenchServeConfig, options), dataset_from_flags(options)


def test_the_load_is_what_was_asked_for(tmp_path):
    workload = Workload("m", DATASET, GOAL, backend="openai-chat", ignore_eos=True, max_concurrency=8, num_warmups=2)
    config, dataset = parsed(workload, tmp_path)
    assert dataset == DATASET
    assert (config.port, config.backend, config.ignore_eos, config.tokenizer) == (8123, "openai-chat", True, "m")
    assert (config.max_concurrency, config.num_warmups, config.max_seconds) == (8, 2, 12.3)
    assert (config.result_dir, config.result_filename) == (str(tmp_path), "load.json")
    assert config.metric_percentiles == "50,90,95,99,99.5"
    assert [str(bound) for bound in config.stop_when] == ["p99.5_e2el_ms>=500"]  # the rest is known at the end only
    assert parsed(workload, tmp_path, stop_early=False)[0].stop_when == ()


@pytest.mark.parametrize("rate", [0.1, 7, 1234.5678901])
def test_a_rate_is_sent_as_it_is_logged(tmp_path, rate):
    config, _ = parsed(Workload("m", DATASET, GOAL), tmp_path, rate)
    assert config.request_rate == rate
    assert config.max_concurrency is None


def test_texts_need_no_tokenizer(tmp_path):
    config, _ = parsed(Workload("m", DatasetConfig(dataset_name="builtin"), GOAL), tmp_path)
    assert config.tokenizer is None


def test_requests_at_once():
    assert Workload("m", DATASET, GOAL).most_in_flight == 24
    assert Workload("m", DATASET, GOAL, max_concurrency=8).most_in_flight == 8
    assert Workload("m", DATASET, GOAL, max_concurrency=80).most_in_flight == 24


def test_a_load():
    met = {"p99.5_e2el_ms": 4.0, "p90_itl_ms": 20, "std_e2el_ms": 4, "date": "today", "stopped": None}
    load = make_load(met, GOAL, 2.0, 1.5, "load.json")
    assert (load.is_slo_met, load.stopped, load.request_rate) == (True, "", 2.0)
    assert load.metrics == {"p99.5_e2el_ms": 4.0, "p90_itl_ms": 20, "std_e2el_ms": 4}
    assert not make_load(met | {"p90_itl_ms": 20.1}, GOAL, 2.0, 1.5, "load.json").is_slo_met
    assert not make_load(met | {"stopped": "it is sure"}, GOAL, 2.0, 1.5, "load.json").is_slo_met
    failed = make_load(met | {"failed": 3, "failures": [{"first": "no\nanswer"}]}, GOAL, 2.0, 1.5, "load.json")
    assert (failed.is_slo_met, failed.failure) == (False, "3 requests failed: no answer")
    assert (
        make_load(met | {"failed": 3}, GOAL, 2.0, 1.5, "load.json").failure == "3 requests failed: it is not known why"
    )


def test_each_draw_is_another(tmp_path):
    def drawn(draw):
        arguments = Workload("m", DATASET, GOAL).arguments(
            8123, tmp_path / "load.json", None, 12.34, stop_early=True, draw=draw
        )
        return dataset_from_flags(make_parser().parse_args(arguments))

    assert [drawn(draw).seed for draw in range(3)] == [3, 4, 5]
    assert replace(drawn(2), seed=3) == DATASET


SCRIPT = "import sys\nfrom pathlib import Path\nprint('pelton: oh')\n{}\nsys.exit({})\n"


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (None, 1, "the load ended with status 1, without a result: oh"),
        ("{", 0, "the load's result cannot be read"),
        ("[]", 0, "the load's result is no JSON object"),
        ("{}", 1, "the load ended with status 1: oh"),
        ('{"output_throughput": 3}', 0, "the load's result has no p99.5_e2el_ms, p90_itl_ms, std_e2el_ms"),
        (
            json.dumps(dict.fromkeys(GOAL.metrics, 1.0) | {"p90_itl_ms": None}),
            0,
            "no answer had the tokens that p90_itl_ms is measured of; have longer answers",
        ),
    ],
)
def test_what_fails(tmp_path, monkeypatch, content, status, message):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = tmp_path / "load.json"
    result.write_text(json.dumps(dict.fromkeys(GOAL.metrics, 1.0)))  # of a run that was interrupted
    write = "" if content is None else f"Path({str(result)!r}).write_text({content!r})"
    (tmp_path / "module_under_test.py").write_text(SCRIPT.format(write, status))
    with pytest.raises(ProcessError, match=message):
        measure_load(["module_under_test"], result, GOAL, 60.0)
