"""Requests that nobody thought of, beside streams that must stay right: made from the API's own description, and good
ones with bytes changed (fault 17)."""

import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.schemas import APIOperation

from tests.support.http_client import (
    PATIENCE,
    STEP_CLOCK,
    check_error,
    check_leaks,
    connect,
    events_of,
    healthy_streams,
    is_idle,
    post,
    request_bytes,
    wait_for,
)
from tests.support.served import Served

FEW, MANY = 30, 400
"""Examples for each operation."""
MANY_TO_CHANGE = 5_000
HEALTH_CHECKS = list(HealthCheck)

load_all_checks()
TRUE_CHECKS = CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    ]
)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A short context, so that no answer takes long."""
    environment = {"PELTON_STRICT_INVARIANTS": "1", "FAKE_STEP_SECONDS": "0.004"}
    flags = ("--max-model-len", "80", "--enable-admin-endpoints")
    with Served("smollm2", *STEP_CLOCK, *flags, environment=environment) as served:
        with healthy_streams(served, number=3, num_tokens=70):
            yield served
        wait_for(lambda: is_idle(served), "rest")
        assert "Traceback" not in served.log, served.log


# ----------------------------------------------------------------------------------------- the API's description


def operations(served: Served) -> list[APIOperation]:
    schema = schemathesis.openapi.from_url(served.url + "/openapi.json")
    return [operation.ok() for operation in schema.get_all_operations()]


def check_operation(operation: APIOperation, mode: GenerationMode, num_examples: int) -> None:
    @settings(max_examples=num_examples, suppress_health_check=HEALTH_CHECKS)
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        answer = case.call_and_validate(checks=TRUE_CHECKS, timeout=PATIENCE)
        if answer.status_code >= 400:
            check_leaks(answer.content)

    check()


def check_operations(served: Served, num_examples: int) -> None:
    found = operations(served)
    assert len(found) >= 10
    for operation in found:
        takes_input = operation.body or operation.path_parameters
        check_operation(operation, GenerationMode.POSITIVE, num_examples if takes_input else 1)
        if operation.body:
            check_operation(operation, GenerationMode.NEGATIVE, num_examples)


def test_what_the_description_allows_and_forbids(served):
    """Is answered as it says, and never with an error of the server's own."""
    check_operations(served, FEW)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_more_of_what_the_description_allows_and_forbids(served):
    check_operations(served, MANY)


# ------------------------------------------------------------------------------------------- good ones, changed

REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Hi é", "max_tokens": 2, "temperature": 0.5, "stop": ["x", "\n"], "logprobs": 1}),
    ("/v1/completions", {"prompt": [[5, 6], [7]], "max_tokens": 2, "stream": True, "n": 2, "seed": 7}),
    ("/v1/completions", {"prompt": ["a"], "echo": True, "logit_bias": {"5": -1e1}, "max_tokens": 1, "top_p": 0.9}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "stream": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "tools": []}),
    ("/tokenize", {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
]
TOKENS = [b'"', b"{", b"}", b"[", b"]", b",", b":", b"-", b"1", b"e9", b"null", b"true", b"NaN", b'"n":2,']
OTHERS = [b"", b"\0", b"\xff", b"\\", b"\\u0000", b"\\ud800", "é".encode(), "🚀".encode()[:2], b"\r\n"]
LONG = [b"9" * 30, b" " * 100, b"[" * 500]
PIECES = st.sampled_from([*TOKENS, *OTHERS, *LONG]) | st.binary(max_size=4)


@st.composite
def changed(draw: st.DrawFn, content: bytes) -> bytes:
    """With some of its bytes taken out, put elsewhere or replaced."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([0, 0, 1, 1, 2, 5, 20])))
        piece = content[start:end] * 2 if draw(st.integers(0, 4)) == 0 else draw(PIECES)
        content = content[:start] + piece + content[end:]
    return content


def check_body(served: Served, path: str, body: bytes) -> int:
    """Returns the status."""
    answer = post(served, path, body)
    if answer.status != 200:
        check_error(answer, 400, 404)
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert not any("error" in event for event in events_of(answer.body))
    else:
        assert isinstance(answer.json(), dict)
    return answer.status


def check_bodies(served: Served, num_examples: int) -> None:
    statuses = Counter[int]()

    @settings(max_examples=num_examples, suppress_health_check=HEALTH_CHECKS)
    @given(st.sampled_from(REQUESTS), st.data())
    def check(request: tuple[str, dict[str, Any]], data: st.DataObject) -> None:
        path, body = request
        statuses[check_body(served, path, data.draw(changed(json.dumps(body, ensure_ascii=False).encode())))] += 1

    check()
    assert min(statuses[200], statuses[400]) > num_examples / 20, statuses


def test_bodies_with_changed_bytes(served):
    """Are accepted or refused, in the shape of answers and errors."""
    check_bodies(served, 400)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_many_bodies_with_changed_bytes(served):
    check_bodies(served, MANY_TO_CHANGE)


def check_bytes(served: Served, content: bytes) -> bool:
    """Whatever comes back is an answer of HTTP, and the connection ends. Returns whether anything came."""
    received = b""
    with connect(served) as connection, suppress(BrokenPipeError, ConnectionResetError):  # the server had seen enough
        connection.sendall(content)
        connection.settimeout(0.05)
        with suppress(TimeoutError):  # it waits for more
            received = connection.recv(65536)
        connection.settimeout(PATIENCE)
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65536):
            received += piece
    check_leaks(received)
    assert received == b"" or received.startswith(b"HTTP/1.1 "), received
    return bool(received)


IN_CHUNKS = (
    b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
    b'b\r\n{"prompt": \r\n4\r\n"a"}\r\n0\r\n\r\n'
)


def check_connections(served: Served, num_examples: int) -> None:
    num_answers = 0
    contents = [request_bytes(path, body, Connection="close") for path, body in REQUESTS]
    contents += [request_bytes(path, body) for path, body in REQUESTS]
    contents += [request_bytes("/v1/models", method="GET"), request_bytes("/health", method="GET") * 3, IN_CHUNKS]

    @settings(max_examples=num_examples, suppress_health_check=HEALTH_CHECKS)
    @given(st.sampled_from(contents), st.data())
    def check(content: bytes, data: st.DataObject) -> None:
        nonlocal num_answers
        num_answers += check_bytes(served, data.draw(changed(content)))

    check()
    assert num_examples / 2 < num_answers
    assert served.get("/health")[0] == 200


def test_connections_with_changed_bytes(served):
    """Get an answer or none, and end."""
    check_connections(served, 300)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_many_connections_with_changed_bytes(served):
    check_connections(served, MANY_TO_CHANGE)
