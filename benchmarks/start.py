"""From the shell to the first token: what `pelton generate` takes to start, as a process, with its files in memory.

    .venv/bin/python benchmarks/start.py [--models smollm2 FILE.gguf] [--runs 9] [--prompt "Why is the sky blue?"]

Runs the command for each model in turn, several times, the first time not counted. Prints for each model the median
and best time from exec to the first byte of text and to the exit, the processor time (both in milliseconds), and the
most memory that was resident, in MB. Python may keep its compiled modules, as it does unless told otherwise.

Ends with one line of JSON.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple


class Start(NamedTuple):
    """One run of the command."""

    first_token_ms: float
    exit_ms: float
    processor_ms: float
    """User and system, of all threads."""
    resident_mb: float


def measure(command: list[str]) -> Start:
    """Raises RuntimeError, with what the command says, if it fails or prints nothing."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdout is not None
        text = os.read(process.stdout.fileno(), 1)
        first_token = time.perf_counter()
        text += process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        end = time.perf_counter()
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        if process.returncode or not text:
            errors.seek(0)
            raise RuntimeError(f"{' '.join(command)} gave {process.returncode}: {errors.read().decode()}")
    processor = usage.ru_utime + usage.ru_stime
    return Start(1e3 * (first_token - start), 1e3 * (end - start), 1e3 * processor, usage.ru_maxrss / 1e3)


def summary(model: str, starts: list[Start]) -> dict[str, object]:
    first, end, processor, resident = zip(*starts, strict=True)
    return {
        "model": model,
        "first_token_ms": round(statistics.median(first), 1),
        "best_first_token_ms": round(min(first), 1),
        "exit_ms": round(statistics.median(end), 1),
        "processor_ms": round(statistics.median(processor), 1),
        "best_processor_ms": round(min(processor), 1),
        "resident_mb": round(max(resident), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["smollm2"], metavar="MODEL")
    parser.add_argument("--runs", type=int, default=9, help="counted runs per model")
    parser.add_argument("--prompt", default="Why is the sky blue?")
    parser.add_argument("--chat", action="store_true", help="render the prompt with the model's chat template")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error(f"argument --runs: must be at least 1, got {options.runs}")
    command = [sys.executable, "-m", "pelton", "generate", "--temperature", "0", "--max-tokens", "1"]
    command += [*(["--chat"] if options.chat else []), options.prompt]
    starts: dict[str, list[Start]] = {model: [] for model in options.models}
    for number in range(options.runs + 1):
        for model, measured in starts.items():
            start = measure([*command, "--model", model])
            if number:
                measured.append(start)
    results = [summary(model, measured) for model, measured in starts.items()]
    for row in results:
        print(
            f"{row['model']}: first token after {row['first_token_ms']} ms (best {row['best_first_token_ms']}), "
            f"exit after {row['exit_ms']}; {row['processor_ms']} ms of processor time "
            f"(best {row['best_processor_ms']}), {row['resident_mb']} MB"
        )
    print(json.dumps({"benchmark": "start", "python": platform.python_version(), "results": results}))


if __name__ == "__main__":
    main()
