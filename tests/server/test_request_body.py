"""Bodies that are large do not hold up what else the server does."""

import asyncio
import gc
import json
import threading

import pytest
from starlette.requests import Request

from pelton.server import request_body
from pelton.server.errors import APIError
from pelton.server.protocol import CompletionRequest
from pelton.server.request_body import read_request
from tests.server.handlers import run


def request_with(body: bytes) -> Request:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, receive)


@pytest.mark.parametrize("is_large", [False, True])
def test_large_ones_are_read_in_a_thread_without_collecting_garbage(monkeypatch, is_large) -> None:
    seen = []
    real = request_body.parse_body

    def parse_body(body: bytes) -> dict[str, object]:
        seen.append((threading.current_thread() is threading.main_thread(), gc.isenabled()))
        return real(body)

    monkeypatch.setattr(request_body, "parse_body", parse_body)
    body = json.dumps({"prompt": "x" * (request_body._LARGE if is_large else 10)}).encode()
    request = run(read_request(request_with(body), CompletionRequest))
    assert request.prompt == json.loads(body)["prompt"]
    assert seen == [(False, False) if is_large else (True, True)]
    assert gc.isenabled()


def test_errors_are_the_same() -> None:
    filling = b" " * request_body._LARGE
    for body, words in ((b"[1]", "it is not a JSON object"), (b'{"prompt": 5}', "prompt must be a string")):
        for padded in (body, body + filling):
            with pytest.raises(APIError, match=words) as raised:
                run(read_request(request_with(padded), CompletionRequest))
            assert raised.value.status == 400
    assert gc.isenabled()


def test_the_collector_waits_for_the_last_of_several() -> None:
    async def check() -> None:
        bodies = [json.dumps({"prompt": "x" * request_body._LARGE}).encode()] * 4
        await asyncio.gather(*(read_request(request_with(body), CompletionRequest) for body in bodies))
        assert gc.isenabled()

    with request_body._COLLECTOR_PAUSE:
        with request_body._COLLECTOR_PAUSE:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    run(check())
