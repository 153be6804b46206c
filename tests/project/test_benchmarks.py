"""The benchmarks run, and end with a line that programs can read."""

import json
import platform
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


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
