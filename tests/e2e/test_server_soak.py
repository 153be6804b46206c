"""Thousands of tiny requests: afterwards the server is as it was (fault 16)."""

import http.client
import json
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.http_client import INSTANT, PATIENCE, events_of, is_idle, vocabulary, wait_for
from tests.support.served import Served

NUM_CONNECTIONS = 32
STRICT = {"PELTON_STRICT_INVARIANTS": "1"}  # an idle core with a block too few ends with an error


@pytest.fixture
def instant() -> Iterator[Served]:
    flags = ("--num-gpu-blocks-override", "400", "--max-model-len", "256", "--enable-admin-endpoints")
    with Served("smollm2", *INSTANT, *flags, environment=STRICT) as served:
        yield served


def body_of(number: int) -> dict[str, Any]:
    """Of a request of its own kind, which has one right answer."""
    rng = random.Random(number)
    length = rng.randrange(1, 40)
    return {
        "prompt": [rng.randrange(50) for _ in range(length)],
        "max_tokens": rng.randrange(0, 6),
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": number % 3 == 0,
        "logprobs": 1 if number % 5 == 0 else None,
        "n": 2 if number % 7 == 0 else 1,
        "stop_token_ids": [3] if number % 4 == 0 else None,
    }


def ask(connection: http.client.HTTPConnection, number: int) -> None:
    body = body_of(number)
    if number % 29 == 0:
        body["prompt"] = [-1]
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if number % 29 == 0:
        assert response.status == 400
        return
    assert response.status == 200, content
    expected = vocabulary().expected_tokens(body["prompt"], body["max_tokens"])
    tokens: dict[int, list[int]] = {index: [] for index in range(body["n"])}
    for part in events_of(content) if body["stream"] else [json.loads(content)]:
        for choice in part["choices"]:
            tokens[choice["index"]] += choice["token_ids"]
    assert all(ids == expected for ids in tokens.values()), number


def ask_all(served: Served, numbers: range) -> None:
    """Over a few connections that are kept."""
    url = urlsplit(served.url)

    def run(start: int) -> None:
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=PATIENCE)
        for number in numbers[start::NUM_CONNECTIONS]:
            ask(connection, number)
        connection.close()

    with ThreadPoolExecutor(NUM_CONNECTIONS) as threads:
        for future in [threads.submit(run, start) for start in range(NUM_CONNECTIONS)]:
            future.result()
    wait_for(lambda: is_idle(served), "rest")


def state(served: Served) -> dict[int, tuple[int, int, int]]:
    """Resident bytes, open files and threads of every process."""
    page = os.sysconf("SC_PAGE_SIZE")
    return {
        pid: (
            int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page,
            len(os.listdir(f"/proc/{pid}/fd")),
            len(os.listdir(f"/proc/{pid}/task")),
        )
        for pid in served.tree()
    }


def check_soak(served: Served, number: int) -> None:
    vocabulary()
    quarter = number // 4
    ask_all(served, range(quarter))  # caches and pools of memory fill up
    wait_for(lambda: num_connections(served) == 0, "the end of all connections")
    before = state(served)
    ask_all(served, range(quarter, number))
    wait_for(lambda: num_connections(served) == 0, "the end of all connections")
    after = state(served)
    assert after.keys() == before.keys()
    for pid, (size, num_files, num_threads) in after.items():
        # Pools of memory breathe by a few hundred kB. Of 1,000 requests 3 kB each would show, and of 15,000 200 bytes;
        # a request with its answer has some 10 kB.
        grown = size - before[pid][0]
        assert grown < 3 << 20, f"process {pid} has {grown} bytes more"
        assert num_files == before[pid][1]
        # Pools begin their threads one by one, up to a few.
        assert num_threads <= before[pid][2] + 8
    assert served.metric("request_success_total") > number * 0.9
    assert json.loads(served.get("/load")[1]) == {"server_load": 0}
    # All blocks are in the pool, whatever the prefix cache holds: the largest prompt there can be fits.
    assert served.post("/reset_prefix_cache", {})[0] == 200
    answer = served.complete([5] * 250, max_tokens=6, n=1, return_token_ids=True, ignore_eos=True)
    assert answer["choices"][0]["token_ids"] == vocabulary().expected_tokens([5] * 250, 6)
    assert "invariant" not in served.log


def num_connections(served: Served) -> int:
    """Of clients, that the server has open: established, or left by the client."""
    port = f":{urlsplit(served.url).port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(fields[1].endswith(port) and fields[3] in ("01", "08") for fields in map(str.split, lines))


def test_fifteen_hundred_tiny_requests(instant):
    check_soak(instant, 1_500)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_twenty_thousand_tiny_requests(instant):
    check_soak(instant, 20_000)
