"""The benchmarks run, and end with a line that programs can read."""

import asyncio
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.http_streams import Answer, Connection, RefusalError
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


def test_forward() -> None:
    command = [sys.executable, "benchmarks/forward.py", "--model", tiny_llama(), "--seconds", "0.01"]
    command += ["--cells", "decode:2:20", "prefill:30", "--threads", "1", "--top-p", "0.9"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert (report["benchmark"], report["model"], report["top_p"]) == ("forward", tiny_llama(), 0.9)
    assert [row["cell"] for row in report["cells"]] == ["decode:2:20", "prefill:30"]
    for row, num_tokens in zip(report["cells"], (2, 30), strict=True):
        assert row["steps"] >= 3
        assert 0 < row["best_ms"] <= row["median_ms"]
        assert row["tokens_per_s"] == pytest.approx(1e3 * num_tokens / row["median_ms"], rel=0.01)


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


def test_serving() -> None:
    command = [sys.executable, "benchmarks/serving.py", "--model", tiny_llama(), "--api-server-counts", "1"]
    command += ["--clients", "1", "2", "--seconds", "0.1", "--rounds", "1", "--runs", "1", "--start-runs", "1"]
    command += ["--streams", "2", "--input-tokens", "16", "--output-tokens", "4", "--idle-seconds", "0.2"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert (report["benchmark"], report["python"]) == ("serving", platform.python_version())
    results = report["results"]
    assert results.keys() == {"overhead", "ttft", "streams", "idle", "start"}
    cells = [(row["executor"], row["clients"], row["output_tokens"]) for row in results["overhead"]]
    instant = [("instant", 1, 1), ("instant", 1, 4), ("instant", 2, 1), ("instant", 2, 4)]
    assert cells == [*instant, ("paced", 1, 4), ("paced", 2, 4)]
    assert all(row["requests_per_s"] > 0 and 0 < row["events_per_token"] <= 1 for row in results["overhead"])
    assert results["ttft"]["http_ms"] > 0 < results["ttft"]["engine_ms"]
    assert results["streams"]["share"] > 0
    assert results["idle"]["processes"] >= 2
    assert results["start"]["first_answer_ms"] > 0


EVENTS = [
    b'data: {"choices":[{"text":"data: 0"}]}\n\n',
    b'data: {"choices":[{"text":"\\n\\n"}]}\n\n',
    b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n',
    b"data: [DONE]\n\n",
]
CHUNKS = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS) + b"0\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Request-Id: 0\r\n\r\n" + CHUNKS
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"


class Answering(asyncio.Transport):
    """Answers whatever is written, in pieces."""

    def __init__(self, connection: Connection, pieces: list[bytes]) -> None:
        super().__init__()
        self.connection, self.pieces = connection, pieces

    def write(self, data: bytes) -> None:
        for piece in self.pieces:
            asyncio.get_running_loop().call_soon(self.connection.data_received, piece)


async def answers_of(pieces: list[bytes], num_requests: int = 1) -> list[Answer]:
    """What the client makes of an answer that comes in these pieces, each time that it asks."""
    connection = Connection()
    connection.connection_made(Answering(connection, pieces))
    return [await asyncio.wait_for(connection.stream(b"request"), 60) for _ in range(num_requests)]


@pytest.mark.parametrize("num_bytes", [1, 2, 3, 7, 50, len(CHUNKED)])
def test_the_client_counts_events_however_they_come(num_bytes: int) -> None:
    pieces = [CHUNKED[start : start + num_bytes] for start in range(0, len(CHUNKED), num_bytes)]
    for answer in asyncio.run(answers_of(pieces, num_requests=2)):
        assert (answer.num_events, answer.num_tokens) == (4, 2)
        assert 0 < answer.seconds_to_first <= answer.seconds


@pytest.mark.parametrize("pieces", [[BUSY], [BUSY[:20], BUSY[20:-2], BUSY[-2:]]])
def test_the_client_tells_of_refusals(pieces: list[bytes]) -> None:
    with pytest.raises(RefusalError, match=r"^503: busy$") as caught:
        asyncio.run(answers_of(pieces))
    assert caught.value.status == 503


def test_the_client_tells_of_streams_without_their_end() -> None:
    with pytest.raises(RefusalError, match=r"^200: "):
        asyncio.run(answers_of([CHUNKED.replace(b"completion_tokens", b"error")]))
