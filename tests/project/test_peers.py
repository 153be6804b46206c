"""Comparisons with other engines: what is told of those that are missing, fail or hang, and what the tables say."""

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.peers import report
from benchmarks.peers.workloads import WORKLOADS, common_prefix

REPOSITORY = Path(__file__).parents[2]
PEERS = REPOSITORY / "benchmarks" / "peers"
LOADED = '{"engine": "llama.cpp:Q8_0", "load_seconds": 0.5}'
ROW = '{"engine": "llama.cpp:Q8_0", "workload": "%s", "tokens_per_s": 7.0}'


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of benchmarks/peers as its program does."""
    monkeypatch.syspath_prepend(str(PEERS))

    def load(name: str) -> ModuleType:
        return import_module(name)

    return load


def run_peers(*arguments: str) -> tuple[str, str]:
    """Its standard output and error."""
    command = [sys.executable, str(PEERS), "smollm2", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_one_command_measures_what_is_installed_and_tells_of_the_rest(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    engines = ["pelton:int8", "llama.cpp:Q8_0", "openvino:Q8_0"]
    told, _ = run_peers(
        *("--engines", *engines, "--environments", str(tmp_path), "--workloads", "smoke"),
        *("--rounds", "2", "--output", str(output)),
    )
    result = json.loads(output.read_text())
    assert (result["benchmark"], result["model"]) == ("peers", "smollm2")
    assert [row["round"] for row in result["rounds"]] == [0, 1]
    assert all(
        row["engine"] == "pelton:int8" and row["barrier_ns"] > 0 < row["tokens_per_s"] for row in result["rounds"]
    )
    assert result["rounds"][0]["repetition"] != result["rounds"][1]["repetition"]
    (summary,) = result["summary"]
    assert summary["lowest"] <= summary["tokens_per_s"] <= summary["highest"]
    (engine,) = result["engines"]
    assert engine["versions"].keys() == {"pelton", "numpy"}
    assert {row["engine"] for row in result["not_measured"]} == {"llama.cpp:Q8_0", "openvino:Q8_0"}
    assert f"python3 benchmarks/peers/setup.py llama.cpp {tmp_path / 'llama.cpp'}" in told
    assert "| pelton:int8 | " in told


@pytest.mark.slow
def test_serving(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    flags = ["--engines", "pelton:int8", "--environments", str(tmp_path), "--workloads", "serving"]
    told, _ = run_peers(
        *flags, "--rates", "4", "2", "--least-requests", "2", "--rate-seconds", "0.5", "--output", str(output)
    )
    rows = json.loads(output.read_text())["rounds"]
    assert [(row["rate"], row["completed"], row["failed"]) for row in rows] == [(2.0, 2, 0), (4.0, 2, 0)]
    assert all(row["total_output_tokens"] == 2 * 64 and row["p99_ttft_ms"] > 0 < row["median_tpot_ms"] for row in rows)
    assert "| pelton:int8 | 2 | 2 of 2 |" in told


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--engines", "pelton:int3"], "pelton:int3: Pelton's formats are"),
        (["--engines", "other:Q8_0"], "other:Q8_0: an engine is pelton, llama.cpp"),
        (["--rounds", "0"], "must be at least 1"),
        (["--rates", "-1"], "must be a number above 0"),
    ],
)
def test_mistakes_are_refused(arguments: list[str], reason: str) -> None:
    command = [sys.executable, str(PEERS), "smollm2", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert reason in done.stderr


def fake_engine(module: Any, folder: Path, script: str) -> Any:
    """llama.cpp, whose interpreter is a shell script."""
    interpreter = folder / "llama.cpp" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text(f"#!/bin/sh\n{script}\n")
    interpreter.chmod(0o755)
    return module("engines").Engine("llama.cpp", "Q8_0", folder, folder, "smollm2", 1, {})


def measured(module: Any, engine: Any, workloads: list[str]) -> tuple[list[str], dict[str, str]]:
    """Workloads that have rows, and the reasons of the others."""
    reasons: dict[str, str] = {}
    limits = {"load_seconds": 30.0, "workload_seconds": 2.0}
    rows = module("offline").measure(engine, workloads, 0, **limits, failed=reasons.__setitem__)
    return [row["workload"] for row in rows], reasons


def test_an_engine_that_cannot_load_says_why(module: Any, tmp_path: Path) -> None:
    engine = fake_engine(module, tmp_path, "echo 'ValueError: no such type' >&2; echo more >&2; exit 3")
    assert measured(module, engine, ["stream", "prefill"]) == (
        [],
        dict.fromkeys(["stream", "prefill"], "loading: exit status 3: ValueError: no such type"),
    )


def test_an_engine_that_crashes_is_started_anew_for_the_next_workload(module: Any, tmp_path: Path) -> None:
    script = f"""
    case "$*" in
      *stream*) echo '{LOADED}'; kill -ILL $$;;
      *) echo '{LOADED}'; echo '{ROW % "prefill"}';;
    esac"""
    found, reasons = measured(module, fake_engine(module, tmp_path, script), ["stream", "prefill"])
    assert found == ["prefill"]
    assert reasons.keys() == {"stream"}
    assert "ended by SIGILL" in reasons["stream"]


def test_an_engine_that_hangs_is_ended_with_its_children(module: Any, tmp_path: Path) -> None:
    script = f"sleep 300 & echo $! > {tmp_path}/child; echo '{LOADED}'; echo '{ROW % 'stream'}'; wait"
    found, reasons = measured(module, fake_engine(module, tmp_path, script), ["stream", "prefill"])
    assert found == ["stream"]
    assert reasons == {"prefill": "not done within 2 s"}
    assert not Path(f"/proc/{(tmp_path / 'child').read_text().strip()}").exists()


@pytest.mark.parametrize("name", ["pelton", "llama.cpp", "vllm", "transformers"])
def test_servers_listen_on_this_machine_only(module: Any, tmp_path: Path, name: str) -> None:
    engines = module("engines")
    settings = engines.PEERS[name].settings if name in engines.PEERS else {}
    engine = engines.Engine(name, "bf16", tmp_path, tmp_path, "smollm2", 2, settings)
    command = module("servers").server_command(engine, 8123)
    assert command[-4:] == ["--host", "127.0.0.1", "--port", "8123"]


def test_an_engine_without_a_server_says_so(module: Any, tmp_path: Path) -> None:
    engine = module("engines").Engine("openvino", "Q8_0", tmp_path, tmp_path, "smollm2", 2, {})
    reasons: dict[str, str] = {}
    load = module("servers").Load([1.0], 1.0, 1, "smollm2")
    limits = {"load_seconds": 1.0, "rate_seconds": 1.0}
    assert module("servers").measure(engine, load, **limits, failed=reasons.__setitem__) == []
    assert reasons == {"serving": "OpenVINO GenAI has no server of its own"}


def test_tuning_keeps_what_helps(module: Any, tmp_path: Path) -> None:
    tuning, engines = module("tuning"), module("engines")
    engine = engines.Engine("llama.cpp", "Q8_0", tmp_path, tmp_path, "smollm2", 2, engines.PEERS["llama.cpp"].settings)

    def measure(candidate: Any) -> Mapping[str, float]:
        if candidate.settings["cache_type"] == "q8_0":
            return {"short_batch": 1000.0}  # the other workloads failed
        return dict.fromkeys(tuning.WORKLOADS, 20.0 if candidate.settings["ubatch"] == 2048 else 10.0)

    best, trials = tuning.tuned(engine, measure)
    assert best.settings == engine.settings | {"ubatch": 2048}
    assert len(trials) == 1 + sum(len(values) for values in engines.PEERS["llama.cpp"].candidates.values())


def test_prompts_with_a_common_beginning() -> None:
    assert common_prefix([[1, 2, 3], [1, 2, 4], [1, 2, 5, 6]]) == [1, 2]
    assert common_prefix([[1, 2], [1, 2]]) == [1]  # the last token of each is its own to compute
    assert common_prefix([[1, 2]]) == []
    assert WORKLOADS["shared_prefix"].prefix_len == 1024


def offline_row(engine: str, number: int, speed: float) -> dict[str, Any]:
    return {"engine": engine, "workload": "stream", "round": number, "tokens_per_s": speed}


def test_ratios_are_those_of_the_same_round() -> None:
    speeds = {"pelton:int8": [10.0, 20.0, 60.0], "other:Q8_0": [20.0, 10.0, 20.0]}
    rows = [offline_row(engine, number, speed) for engine in speeds for number, speed in enumerate(speeds[engine])]
    own, other = report.summarize(rows, {"other:Q8_0": "pelton:int8"})
    assert "ratio" not in own
    assert other["ratio"] == 2.0  # of 0.5, 2 and 3
    assert (other["tokens_per_s"], other["lowest"], other["highest"]) == (20.0, 10.0, 20.0)


def test_tables_show_where_pelton_is_slower_and_what_failed() -> None:
    counterparts = {"other:Q8_0": "pelton:int8", "broken:Q8_0": "pelton:int8"}
    rows = [offline_row("pelton:int8", 0, 90.0), offline_row("other:Q8_0", 0, 1000.0)]
    figures = {"num_prompts": 4, "completed": 4, "output_throughput": 50.0, "p99_ttft_ms": 9.0, "median_tpot_ms": 3.0}
    serving = [
        {"engine": "pelton:int8", "workload": "serving", "rate": 2.0, "mean_ttft_ms": 8.0, **figures},
        {"engine": "other:Q8_0", "workload": "serving", "rate": 2.0, "mean_ttft_ms": 5.0, **figures},
    ]
    failures = {("broken:Q8_0", "stream"): "exit status 1", ("broken:Q8_0", "serving"): "it has no server"}
    told = report.markdown(
        report.summarize(rows, counterparts),
        report.summarize_serving(serving),
        ["stream", "serving"],
        failures,
        counterparts,
    )
    assert "| other:Q8_0 | 1,000 (**0.09**) |" in told
    assert "| broken:Q8_0: exit status 1 | failed |" in told
    assert "| broken:Q8_0: it has no server |  | failed |" in told
    assert "stream: pelton:int8 has 0.09 of the speed of other:Q8_0" in told
    assert "serving 2 requests/s: TTFT mean, ms is 8.0 with pelton:int8, 5.0 with other:Q8_0" in told
    assert "TPOT" not in told.split("Pelton is behind in")[1]
