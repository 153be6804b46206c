"""Comparisons with other engines: what is told of those that are missing, fail or hang, and what the tables say."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.peers import report
from benchmarks.peers.workloads import WORKLOADS, common_prefix, requests
from pelton.config import LinearScaling, RopeConfig

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
        (["--engines", "vllm:Q8_0"], "vllm:Q8_0: vllm's formats are bf16, fp32"),
        (["--engines", "llama.cpp:bf16"], "llama.cpp:bf16: llama.cpp reads GGUF files"),
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
    assert module("servers").measure(engine, load, 0, **limits, failed=reasons.__setitem__) == []
    assert reasons == {"serving": "OpenVINO GenAI has no server of its own"}


def test_tuning_keeps_what_helps(module: Any, tmp_path: Path) -> None:
    tuning, engines = module("tuning"), module("engines")
    engine = engines.Engine("llama.cpp", "Q8_0", tmp_path, tmp_path, "smollm2", 2, engines.PEERS["llama.cpp"].settings)

    order = []

    def measure(candidate: Any, repetition: int) -> Mapping[str, float]:
        order.append((candidate.settings["ubatch"], repetition))
        if candidate.settings["cache_type"] == "q8_0":
            return {"short_batch": 1000.0}  # the other workloads failed
        return dict.fromkeys(tuning.WORKLOADS, 20.0 if candidate.settings["ubatch"] == 2048 else 10.0)

    best, trials = tuning.tuned(engine, measure)
    assert best.settings == engine.settings | {"ubatch": 2048}
    assert order[:6] == [(512, 0), (128, 0), (512, 1), (128, 1), (512, 2), (128, 2)]
    assert len(trials) == 3 * 6 + 3 + 1  # the last candidate fails, and is not tried again


def test_one_lucky_trial_does_not_choose_a_setting(module: Any, tmp_path: Path) -> None:
    tuning, engines = module("tuning"), module("engines")
    engine = engines.Engine("transformers", "fp32", tmp_path, tmp_path, "smollm2", 2, {"attn_implementation": "sdpa"})

    def measure(candidate: Any, repetition: int) -> Mapping[str, float]:
        is_lucky = candidate.settings["attn_implementation"] == "eager" and repetition == 0
        return dict.fromkeys(tuning.WORKLOADS, 20.0 if is_lucky else 10.0)

    assert tuning.tuned(engine, measure)[0].settings == {"attn_implementation": "sdpa"}


def test_a_prefix_cache_finds_nothing_but_the_shared_prefix() -> None:
    beginnings: dict[tuple[int, ...], tuple[object, ...]] = {}
    for name, workload in WORKLOADS.items():
        for repetition in range(3):
            for purpose in ("warm-up", "timed"):
                prompts = requests(name, repetition, purpose)
                assert [len(ids) for ids in prompts] == [workload.prefix_len + workload.prompt_len] * len(prompts)
                own = {tuple(ids[:16]) for ids in prompts}
                assert len(own) == (1 if workload.prefix_len else workload.num_requests)
                for beginning in own:
                    assert beginnings.setdefault(beginning, (name, repetition, purpose)) == (name, repetition, purpose)


def test_the_warm_up_has_the_shapes_of_what_is_timed(module: Any) -> None:
    calls: list[tuple[int, int, int]] = []

    class Recorder:
        def prepare(self, num_requests: int, num_tokens: int) -> None:
            pass

        def generate(self, prompts: list[list[int]], num_out: int) -> list[int]:
            calls.append((len(prompts), len(prompts[0]), num_out))
            return [num_out] * len(prompts)

    for name in ("stream", "prefill", "offline"):
        module("workloads").measure(Recorder(), name, 0)
    assert calls == [(1, 32, 128), (1, 32, 128), (4, 1024, 1), (4, 1024, 1), (64, 128, 16), (64, 128, 128)]


def is_running(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_engines_end_with_the_comparison(module: Any, tmp_path: Path, number: signal.Signals) -> None:
    told = tmp_path / "pids"
    script = f"""
    case "$*" in
      *"json.dumps"*) echo '{{}}';;
      *) sleep 300 & echo $$ $! > {told}.new; mv {told}.new {told}; wait;;
    esac"""
    fake_engine(module, tmp_path, script)
    flags = ["--engines", "llama.cpp:stored", "--environments", str(tmp_path), "--workloads", "smoke"]
    process = subprocess.Popen([sys.executable, str(PEERS), "smollm2", *flags], cwd=REPOSITORY, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not told.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        pids = [int(pid) for pid in told.read_text().split()]
        os.kill(process.pid, number)
        assert process.wait(60) == (-number if number == signal.SIGKILL else 128 + number)
        while any(map(is_running, pids)) and time.monotonic() < deadline + 30:
            time.sleep(0.05)
        assert not any(map(is_running, pids))
    finally:
        process.kill()
        process.communicate()


def test_an_engine_whose_program_is_missing_says_so(module: Any, tmp_path: Path) -> None:
    engine = module("engines").Engine("llama.cpp", "Q8_0", tmp_path, tmp_path, "smollm2", 1, {})
    found, reasons = measured(module, engine, ["stream"])
    assert (found, reasons.keys()) == ([], {"stream"})
    assert reasons["stream"].endswith("does not start: No such file or directory")


def test_the_file_as_stored_is_not_confused_with_one_of_its_type(module: Any, tmp_path: Path) -> None:
    parser = module("engines")
    stored, same = (
        parser.Engine("llama.cpp", weight_format, tmp_path, tmp_path, "smollm2", 1, {})
        for weight_format in ("stored", "Q8_0")
    )
    assert (stored.spec, stored.counterpart) == ("llama.cpp:stored", "pelton:stored")
    assert (same.spec, same.counterpart) == ("llama.cpp:Q8_0", "pelton:int8")
    assert stored.path != same.path


def test_model_files_of_another_file_of_that_name_are_others(module: Any, tmp_path: Path) -> None:
    path, folder_name = tmp_path / "model.gguf", module("model_files").folder_name
    path.write_bytes(b"one")
    first = folder_name(path)
    assert folder_name(path) == first
    path.write_bytes(b"other")
    second = folder_name(path)
    os.utime(path, (1, 1))
    assert len({first, second, folder_name(path)}) == 3


def test_a_model_file_that_cannot_be_made_is_told_and_nothing_is_left(module: Any, tmp_path: Path) -> None:
    model_files, unavailable = module("model_files"), module("engines").UnavailableError
    checkpoint = model_files.open_gguf("smollm2")
    with pytest.raises(unavailable, match="there is no file of type Q3_X; this model's are stored, Q4_1, Q4_0"):
        model_files.make(checkpoint, tmp_path, "Q3_X")
    model_files.make(checkpoint, tmp_path, "stored")
    assert [path.name for path in tmp_path.iterdir()] == ["stored.gguf"]
    assert (tmp_path / "stored.gguf").resolve() == checkpoint.path.resolve()


def test_a_file_that_does_not_name_its_type(module: Any) -> None:
    checkpoint = type("Checkpoint", (), {"metadata": {}})()
    assert module("model_files").stored_format(checkpoint) == "unknown"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architecture": "other"}, "writes llama, gemma3, and no other"),
        ({"rope": RopeConfig(1e5, LinearScaling(2.0))}, "scaling of the rotary embedding"),
        ({"attention_bias": True}, "biases"),
        ({"logit_softcap": 30.0}, "soft caps"),
        ({"attention_scale": 1.0}, "another attention scale"),
    ],
)
def test_what_a_config_would_leave_out_is_refused(module: Any, changes: dict[str, Any], reason: str) -> None:
    config = module("model_files").open_gguf("smollm2").config
    with pytest.raises(module("engines").UnavailableError, match=reason):
        module("export").hf_config(replace(config, **changes))


def test_rates_above_one_that_is_not_answered_are_told(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = module("servers")
    engine = module("engines").Engine("pelton", "int8", tmp_path, tmp_path, "smollm2", 2, {})

    def one_rate(engine: Any, load: Any, number: int, rate: float, *_: Any) -> dict[str, Any]:
        return {"rate": rate, "failed": int(rate == 2.0)}

    monkeypatch.setattr(servers, "_one_rate", one_rate)
    reasons: dict[str, str] = {}
    load = servers.Load([4.0, 1.0, 2.0, 8.0], 1.0, 1, "smollm2")
    rows = list(servers._rates(engine, load, 0, 1, tmp_path, 1.0, reasons.__setitem__))
    assert [row["rate"] for row in rows] == [1.0, 2.0]
    why = "left out, since not all were answered at 2/s"
    assert reasons == {"serving at 4/s": why, "serving at 8/s": why}


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
    figures = {
        "num_prompts": 4,
        "completed": 4,
        "failed": 0,
        "mean_input_len": 128.0,
        "output_throughput": 50.0,
        "p99_ttft_ms": 9.0,
        "median_tpot_ms": 3.0,
    }
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


def test_serving_is_compared_where_all_is_answered() -> None:
    def row(engine: str, rate: float, completed: int, throughput: float, ttft: float) -> dict[str, Any]:
        figures = {"mean_ttft_ms": ttft, "p99_ttft_ms": 9.0, "median_tpot_ms": 3.0, "output_throughput": throughput}
        counts = {"num_prompts": 10, "completed": completed, "failed": 10 - completed, "mean_input_len": 128.0}
        return {"engine": engine, "workload": "serving", "rate": rate, **counts, **figures}

    rows = [row("pelton:int8", 1.0, 10, 40.0, 1.0), row("other:Q8_0", 1.0, 10, 50.0, 1.0)]
    rows += [row("pelton:int8", 2.0, 6, 40.0, 1.0), row("other:Q8_0", 2.0, 8, 50.0, 90.0)]
    rows += [row("pelton:int8", 3.0, 10, 40.0, 9.0), row("other:Q8_0", 3.0, 5, 50.0, 1.0)]
    rows += [row("other:Q8_0", 4.0, 7, 50.0, 1.0)]
    assert report.losses([], report.summarize_serving(rows), {"other:Q8_0": "pelton:int8"}) == [
        "serving 1 requests/s: output tokens/s is 40.0 with pelton:int8, 50.0 with other:Q8_0",
        "serving 2 requests/s: pelton:int8 answered 6 requests, other:Q8_0 8",
        "serving 4 requests/s: pelton:int8 answered 0 requests, other:Q8_0 7",
    ]
