"""The benchmarks run, and end with a line that programs can read."""

import json
import platform
import subprocess
import sys
from pathlib import Path

from tests.support.tiny_llama import tiny_llama

REPOSITORY = Path(__file__).parents[2]


def test_start() -> None:
    command = [sys.executable, "benchmarks/start.py", "--runs", "1", "--models", tiny_llama(), "--prompt", "Hello"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert report.keys() == {"benchmark", "python", "results"}
    (row,) = report["results"]
    assert row["model"] == tiny_llama()
    assert 0 < row["best_first_token_ms"] <= row["first_token_ms"] <= row["exit_ms"]
    assert row["processor_ms"] > 0
    assert row["resident_mb"] > 10


def test_step_overhead() -> None:
    command = [sys.executable, "benchmarks/step_overhead.py", "--steps", "2", "--requests", "1", "4"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert report.keys() == {"benchmark", "python", "results"}
    assert (report["benchmark"], report["python"]) == ("step_overhead", platform.python_version())
    assert [row["requests"] for row in report["results"]] == [1, 4]
    for row in report["results"]:
        assert row.keys() == {"requests", "median_ms", "p10_ms", "p90_ms", "aim_ms"}
        assert 0 < row["p10_ms"] <= row["median_ms"] <= row["p90_ms"]
