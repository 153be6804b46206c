"""A client of completions that costs little: it counts the events of a stream and reads no more than it must.

For serving.py, whose client runs on the cores of the server that it measures.
"""

import asyncio
import json
import re
import time
from typing import NamedTuple, cast

TAIL_BYTES = 2048
"""Of a body, kept to see its end; the usage is in it."""
_NUM_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')


class Answer(NamedTuple):
    """What came of one request. Times are seconds since it was sent."""

    seconds_to_first: float
    """To the end of the first event."""
    seconds: float
    num_events: int
    """The usage and the end of the stream are two of them."""
    num_tokens: int


class RefusalError(RuntimeError):
    """An answer without tokens; its message is status and body."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body.decode(errors='replace')}")
        self.status = status


def completion(model: str, prompt: list[int], num_tokens: int) -> bytes:
    """The request for a stream of exactly so many tokens, greedy."""
    fields = {"model": model, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    body = json.dumps(fields | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Connection(asyncio.Protocol):
    """Kept alive; one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its type

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._fail(ConnectionResetError("the server closed the connection before it had answered"))

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def stream(self, request: bytes) -> Answer:
        """Raises RefusalError, or ConnectionError if there is no whole answer."""
        if self._transport is None:
            raise ConnectionResetError("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._tail = b""
        self._length: int | None = None
        """Bytes of a body that is not chunked."""
        self._status = 0
        self._num_events = 0
        self._first_event = 0.0
        self._start = time.perf_counter()
        self._transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            return
        if not self._status:
            head, end, data = (self._tail + data).partition(b"\r\n\r\n")
            if not end:
                self._tail = head
                return
            self._tail = b""
            self._begin(head)
        if self._status == 200:
            self._count(data)
        # The last chunk is empty. Nothing else ends like this, for JSON has no line breaks.
        self._tail = (self._tail + data)[-TAIL_BYTES:] if len(data) < TAIL_BYTES else data
        if self._tail.endswith(b"0\r\n\r\n") if self._length is None else len(self._tail) >= self._length:
            self._finish()

    def _begin(self, head: bytes) -> None:
        self._status = int(head.split(None, 2)[1])
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                self._length = min(int(line.split(b":")[1]), TAIL_BYTES)

    def _count(self, data: bytes) -> None:
        num = data.count(b"\n\n")
        if data[:1] == b"\n" and self._tail[-1:] == b"\n" and self._tail[-2:] != b"\n\n":
            num += 1
        if num and not self._num_events:
            self._first_event = time.perf_counter()
        self._num_events += num

    def _finish(self) -> None:
        assert self._answer is not None
        found = _NUM_TOKENS.search(self._tail)
        if self._status != 200 or found is None or b"[DONE]" not in self._tail:
            self._fail(RefusalError(self._status, self._tail))
            return
        end = time.perf_counter()
        self._answer.set_result(
            Answer(self._first_event - self._start, end - self._start, self._num_events, int(found[1]))
        )

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


async def connect(port: int) -> Connection:
    """Raises OSError if nobody listens."""
    return (await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port))[1]
