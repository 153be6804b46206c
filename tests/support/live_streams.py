"""Streams that are read step by step, while something happens to the server; every byte of them is checked."""

import http.client
import json
import os
import signal
import socket
import struct
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from pelton.loader import open_checkpoint
from pelton.server.routes import RANK_HEADER
from pelton.tokenizer import Tokenizer, load_tokenizer
from tests.support.http_client import check_error, connect, events_of, get, post, request_bytes, vocabulary
from tests.support.served import Served

NOT_NOW = "The engine cannot serve requests at the moment; try again later."
ERROR_TYPES = {500: "InternalServerError", 503: "ServiceUnavailableError"}


@cache
def tokenizer() -> Tokenizer:
    return load_tokenizer(open_checkpoint("smollm2"))


def body_of(prompt: list[int], num_tokens: int, **options: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "return_token_ids": True, **options}


def error_of(status: int, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": ERROR_TYPES[status], "param": None, "code": status}}


def core_ended(rank: int, how: str = "signal SIGKILL") -> str:
    """What clients are told."""
    return f"The request failed: engine core {rank} ended unexpectedly ({how}); please send the request again"


class LiveStream:
    """A completion of a fake executor that is being streamed, and the one right answer to it."""

    def __init__(self, served: Served, prompt: list[int], num_tokens: int, *, rank: int | None = None) -> None:
        """`rank`: the engine core that it is for."""
        self.prompt = prompt
        self.expected = vocabulary().expected_tokens(prompt, num_tokens)
        self.connection = connect(served)
        headers = {"Connection": "close"} if rank is None else {"Connection": "close", RANK_HEADER: str(rank)}
        self.connection.sendall(request_bytes("/v1/completions", body_of(prompt, num_tokens, stream=True), **headers))
        self._response = http.client.HTTPResponse(self.connection, method="POST")
        self._body = b""
        self._num_tokens = 0

    def read(self, num_tokens: int) -> None:
        """Until so many tokens have come."""
        if not self._body:
            self._response.begin()
            assert self._response.status == 200, self._response.read()
        while self._num_tokens < num_tokens:
            line = self._response.readline()
            assert line, self._body
            self._body += line
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                assert "choices" in event, event
                self._num_tokens += sum(len(choice["token_ids"]) for choice in event["choices"])

    def check_finished(self) -> None:
        """All comes that is to come, in exactly these bytes."""
        events = self._rest()
        assert self._tokens_of(events) == self.expected
        text = "".join(choice["text"] for event in events for choice in event["choices"])
        assert text == tokenizer().decode(self.expected, True)
        assert [choice["finish_reason"] for choice in events[-1]["choices"]] == ["length"]

    def check_failed(self, status: int, *messages: str) -> None:
        """What has come is right, and ends before its time with this error, or one of these."""
        *events, error = self._rest()
        assert error in [error_of(status, message) for message in messages]
        tokens = self._tokens_of(events)
        assert tokens == self.expected[: len(tokens)]
        assert len(tokens) < len(self.expected)
        assert all(choice["finish_reason"] is None for event in events for choice in event["choices"])

    def check_broken(self) -> None:
        """The connection ends in the middle."""
        with suppress(ConnectionResetError):
            rest = b""
            with suppress(http.client.IncompleteRead):
                if not self._body:
                    self._response.begin()
                rest = self._response.read()
            assert b"[DONE]" not in self._body + rest
        self.close()

    def close(self) -> None:
        self._response.close()
        self.connection.close()

    def reset(self) -> None:
        """Leave without a farewell."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def _rest(self) -> list[dict[str, Any]]:
        if not self._body:
            self._response.begin()
            assert self._response.status == 200, self._response.read()
        body = self._body + self._response.read()
        self.close()
        events = events_of(body)
        encoded = [b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events]
        assert body == b"".join(encoded) + b"data: [DONE]\n\n"
        return events

    @staticmethod
    def _tokens_of(events: list[dict[str, Any]]) -> list[int]:
        return [token_id for event in events for choice in event["choices"] for token_id in choice["token_ids"]]


def owner_of(served: Served, connection: socket.socket) -> int | None:
    """Process id of the API server process that has accepted a connection; None if it waits still."""
    server, client = (f":{connection.getpeername()[1]:04X}", f":{connection.getsockname()[1]:04X}")
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(server) and fields[2].endswith(client):
            return _holder(served, f"socket:[{fields[9]}]")
    return None


def _holder(served: Served, name: str) -> int | None:
    for pid in [*served.children("api_process"), served.pid]:
        with suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{fd}") == name:
                        return pid
    return None


def core_of(served: Served, rank: int) -> int | None:
    """Process id of the rank's engine core."""
    found = [pid for pid, command in served.tree().items() if ".core_proc " in command and f"--rank {rank} " in command]
    return found[0] if found else None


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def health(served: Served) -> int:
    return get(served, "/health").status


def answers(served: Served, prompt: list[int], rank: int) -> bool:
    """Whether this engine core completes a prompt, which must be right then."""
    answer = post(served, "/v1/completions", body_of(prompt, 4), X_data_parallel_rank=str(rank))
    if answer.status == 200:
        assert answer.json()["choices"][0]["token_ids"] == vocabulary().expected_tokens(prompt, 4)
        return True
    assert check_error(answer, 503) == error_of(503, NOT_NOW)["error"]
    return False
