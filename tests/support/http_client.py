"""A client for tests of the server: exact bytes out, and what comes back, checked for its shape."""

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from pelton.loader import open_checkpoint
from tests.support.served import Served
from tests.support.serving_executors import Vocabulary

PATIENCE = 120.0
"""Seconds until a test gives up waiting for an answer."""
INSTANT = ("--distributed-executor-backend", "tests.support.serving_executors:InstantExecutor")
STEP_CLOCK = ("--distributed-executor-backend", "tests.support.serving_executors:StepClockExecutor")
_LEAK = re.compile(rb'/work|/usr|/tmp|/home|site-packages|Traceback|0x[0-9a-fA-F]{4,}|File "|\.py\b|pelton\.\w+\.\w+')
"""What tells something of the machine or of the program."""


@dataclass(frozen=True)
class Answer:
    """What a server sent for one request."""

    status: int
    headers: dict[str, str]
    """Names in small letters."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def connect(served: Served) -> socket.socket:
    url = urlsplit(served.url)
    connection = socket.create_connection((url.hostname, url.port), timeout=PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def request_bytes(path: str, body: Any = None, *, method: str = "POST", **headers: str) -> bytes:
    """`body` is encoded unless it is bytes. Underscores in names of headers become hyphens."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Host": "test", "Content-Type": "application/json", "Content-Length": str(len(data))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data


def read_answer(connection: socket.socket, method: str = "POST") -> Answer:
    """The next answer, as long as nothing else is read from the connection."""
    response = http.client.HTTPResponse(connection, method=method)
    response.begin()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, response.read())


def exchange(served: Served, data: bytes) -> Answer:
    """The answer to these bytes, on a connection of their own; the server may answer before it has read them all."""
    with connect(served) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
        return read_answer(connection)


def post(served: Served, path: str, body: Any, **headers: str) -> Answer:
    return exchange(served, request_bytes(path, body, **headers))


def get(served: Served, path: str, **headers: str) -> Answer:
    return exchange(served, request_bytes(path, method="GET", **headers))


def check_error(answer: Answer, *statuses: int) -> dict[str, Any]:
    """The error, which has its shape and tells nothing of the machine. `statuses`: those it may have, by default 400 to
    499."""
    assert answer.status in (statuses or range(400, 500)), answer
    check_leaks(answer.body)
    assert answer.headers["content-type"].startswith("application/json"), answer
    content = answer.json()
    assert set(content) == {"error"}, content
    return check_error_entry(content["error"], answer.status)


def check_error_entry(error: Any, status: int) -> dict[str, Any]:
    assert set(error) == {"message", "type", "param", "code"}, error
    assert error["code"] == status
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    return dict(error)


def check_leaks(body: bytes) -> None:
    """No path, no address in memory, no traceback."""
    found = _LEAK.search(body)
    assert found is None, body[max(0, found.start() - 200) : found.end() + 200]


def events_of(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream, whose every byte is as it must be; without the last one, `[DONE]`."""
    *events, rest = body.split(b"\n\n")
    assert rest == b"", body[-200:]
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events), body[:200]
    assert events[-1] == b"data: [DONE]", body[-200:]
    return [json.loads(event.removeprefix(b"data: "), parse_constant=_refuse_constant) for event in events[:-1]]


def stream(served: Served, path: str, body: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    """The events of a request that must be accepted."""
    answer = post(served, path, {**body, "stream": True}, **headers)
    assert answer.status == 200, answer
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events_of(answer.body)


@dataclass(frozen=True)
class Choice:
    """One choice, streamed or not."""

    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int]
    """Only with `return_token_ids`."""
    logprobs: list[tuple[str, float | None, Any]]
    """Token, log probability and the most likely ones, of completions."""


def choices(served: Served, body: dict[str, Any], *, streamed: bool) -> list[Choice]:
    """The choices of a completion, by index."""
    pieces: dict[int, list[dict[str, Any]]] = {}
    if streamed:
        for event in stream(served, "/v1/completions", body):
            assert "error" not in event, event
            for piece in event["choices"]:
                pieces.setdefault(piece["index"], []).append(piece)
    else:
        answer = post(served, "/v1/completions", body)
        assert answer.status == 200, answer
        for piece in answer.json()["choices"]:
            pieces[piece["index"]] = [piece]
    assert sorted(pieces) == list(range(len(pieces)))
    return [_joined(pieces[index]) for index in range(len(pieces))]


def _joined(pieces: Sequence[dict[str, Any]]) -> Choice:
    assert all(piece["finish_reason"] is None for piece in pieces[:-1]), pieces
    logprobs = [piece["logprobs"] for piece in pieces if piece["logprobs"] is not None]
    return Choice(
        "".join(piece["text"] for piece in pieces),
        pieces[-1]["finish_reason"],
        pieces[-1]["stop_reason"],
        [token_id for piece in pieces for token_id in piece.get("token_ids") or ()],
        [
            entry
            for part in logprobs
            for entry in zip(part["tokens"], part["token_logprobs"], part["top_logprobs"], strict=True)
        ],
    )


@cache
def vocabulary(model: str = "smollm2") -> Vocabulary:
    """Of the fake executors, which say what must come."""
    config = open_checkpoint(model).config
    return Vocabulary(config.vocab_size, config.eos_token_ids)


@contextmanager
def healthy_streams(served: Served, *, number: int = 8, num_tokens: int = 200) -> Iterator[None]:
    """Streams of a fake executor, one after the other on each of so many connections, as long as the context lasts.

    Each must bring the very tokens that it should; so must all that are still running when the context ends.
    """
    stop = threading.Event()
    problems: list[BaseException] = []
    num_finished = [0] * number

    def run(index: int) -> None:
        try:
            while not stop.is_set() or not num_finished[index]:
                prompt = [5 + index, 7, 100 + num_finished[index] % 1000]
                check_stream(served, prompt, num_tokens)
                num_finished[index] += 1
        except BaseException as error:  # for the test's own thread to raise
            problems.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    if problems:
        raise problems[0]
    assert all(num_finished)


def check_stream(served: Served, prompt: list[int], num_tokens: int) -> None:
    """Stream a completion of a fake executor, which has one right answer."""
    body = {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "return_token_ids": True}
    (choice,) = choices(served, body, streamed=True)
    assert choice.token_ids == vocabulary().expected_tokens(prompt, num_tokens)
    assert choice.finish_reason == "length"


def wait_for(condition: Any, what: str, seconds: float = PATIENCE) -> None:
    """Until the condition, which is asked again and again, holds."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError(f"{what} did not come within {seconds:.0f} seconds")


def is_idle(served: Served) -> bool:
    """No request is known to anybody, and no block of the KV cache is held."""
    return not any(
        served.metric(name) for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    )
