"""A server that answers as a test says, event by event, and counts how many requests it has at once."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

PATIENCE = 60.0
"""Seconds until a test gives up."""


@dataclass(frozen=True)
class Refuse:
    """The whole answer: a status, and a body."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"


@dataclass(frozen=True)
class Sleep:
    seconds: float


class Cut:
    """The connection ends here."""


Step = Refuse | Sleep | Cut | bytes
Script = Callable[["Received"], Iterable[Step]]
"""What happens to a request. Bytes go out as they are, each in a chunk of its own."""


@dataclass
class Received:
    """A request that has come."""

    path: str
    headers: dict[str, str]
    """Names in small letters."""
    body: dict[str, Any]
    at: float
    """When it was there, by `perf_counter`."""
    header_lines: list[tuple[str, str]] = field(default_factory=list)
    """All of them, with names as they were written."""
    sent_at: list[float] = field(default_factory=list)
    """Just before each of the bytes was sent."""

    @property
    def is_chat(self) -> bool:
        return "chat" in self.path

    def event(self, text: str | None = None, *, finish: str | None = None, **choice: Any) -> bytes:
        """An event with text, in the shape of the endpoint that was asked."""
        if text is not None:
            choice |= {"delta": {"content": text}} if self.is_chat else {"text": text}
        return encoded({"choices": [{"index": 0, **choice, "finish_reason": finish}], "usage": None})

    def role(self) -> bytes:
        return self.event(delta={"role": "assistant", "content": ""})

    def usage(self, num_output: int, *, num_prompt: int = 7, num_cached: int = 0) -> bytes:
        usage = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": num_cached},
        }
        return encoded({"choices": [], "usage": usage})


DONE = b"data: [DONE]\n\n"


def encoded(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"id": "cmpl-1", "model": "stand-in", **content}).encode() + b"\n\n"


def tokens(*, first: float = 0.0, gap: float = 0.0, num: int | None = None) -> Script:
    """A token after `first` seconds, then each after `gap`; as many as are asked for, unless `num` says otherwise."""

    def script(request: Received) -> Iterator[Step]:
        number = request.body["max_tokens"] if num is None else num
        if request.is_chat:
            yield request.role()
        for index in range(number):
            yield Sleep(gap if index else first)
            yield request.event(f" {index}", finish="length" if index == number - 1 else None)
        yield request.usage(number)
        yield DONE

    return script


class EventServer:
    """A context manager; it runs in a thread of its own."""

    def __init__(self, script: Script, *, models: list[dict[str, Any]] | None = None) -> None:
        self.script = script
        self.models = [{"id": "stand-in"}] if models is None else models
        self.received: list[Received] = []
        self.num_connections = 0
        self.num_at_once = 0
        self.most_at_once = 0
        self.models_status = 200
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve)
        self._ready = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> "EventServer":
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port: int = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.num_connections += 1
        self._tasks.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has gone, or the test has ended
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether another one may follow on this connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        header_lines = [(name, value) for name, value in (line.split(": ", 1) for line in lines)]
        headers = {name.lower(): value for name, value in header_lines}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        at = perf_counter()
        if method == "GET":
            is_list = path == "/v1/models"
            status = self.models_status if is_list else 404
            _answer(writer, Refuse(status, json.dumps({"data": self.models}).encode() if is_list else b"{}"))
            return True
        request = Received(path, headers, json.loads(content), at, header_lines)
        self.received.append(request)
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        try:
            return await self._play(request, writer)
        finally:
            self.num_at_once -= 1

    async def _play(self, request: Received, writer: asyncio.StreamWriter) -> bool:
        has_begun = False
        for step in self.script(request):
            if isinstance(step, Sleep):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Refuse):
                _answer(writer, step)
                return True
            elif isinstance(step, Cut):
                return False
            else:
                if not has_begun:
                    has_begun = True
                    writer.write(_head(200, "text/event-stream", "Transfer-Encoding: chunked"))
                request.sent_at.append(perf_counter())
                writer.write(b"%x\r\n%b\r\n" % (len(step), step))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        return True


def _head(status: int, content_type: str, *lines: str) -> bytes:
    head = [f"HTTP/1.1 {status} Reason", f"Content-Type: {content_type}", "Server: stand-in/1", *lines]
    return ("\r\n".join(head) + "\r\n\r\n").encode()


def _answer(writer: asyncio.StreamWriter, answer: Refuse) -> None:
    writer.write(_head(answer.status, answer.content_type, f"Content-Length: {len(answer.body)}") + answer.body)
