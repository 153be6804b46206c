"""An HTTP server that speaks as the API does, with answers that a test gives piece by piece."""

import json
import socket
from collections.abc import Iterable
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from threading import Event, Thread
from types import TracebackType
from typing import Any

from pelton.server.page_files import PageFile, page_files

TIMEOUT = 60.0
"""Seconds."""
KEEP_OPEN = 2 * TIMEOUT


class Exchange:
    """A completion request that waits for the test to answer it."""

    def __init__(self, handler: "_Handler", body: dict[str, Any]) -> None:
        self.path = handler.path
        self.headers: Message = handler.headers
        self.body = body
        self.ended = Event()
        self._handler = handler

    def refuse(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        body = {"error": {"message": message, "type": "Error", "param": None, "code": status}}
        self._handler.answer(status, "application/json", json.dumps(body).encode(), headers or {})
        self.ended.set()

    def begin(self) -> None:
        self._handler.send_response(200)
        self._handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self._handler.send_header("Transfer-Encoding", "chunked")
        self._handler.end_headers()

    def send_bytes(self, data: bytes) -> None:
        """One chunk, in TCP packets of its own."""
        self._handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def send_event(self, event: dict[str, Any]) -> None:
        self.send_bytes(self.encode(event))

    @staticmethod
    def encode(event: dict[str, Any]) -> bytes:
        return f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()

    def text_event(self, text: str, finish_reason: str | None = None) -> dict[str, Any]:
        news = {"delta": {"content": text}} if "chat" in self.path else {"text": text}
        return {"choices": [{"index": 0, "finish_reason": finish_reason, **news}]}

    def send_text(self, text: str, finish_reason: str | None = None) -> None:
        self.send_event(self.text_event(text, finish_reason))

    def finish(self, num_tokens: int | None = None) -> None:
        """With usage, if it is given, and [DONE]."""
        if num_tokens is not None:
            self.send_event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": num_tokens}})
        self.send_bytes(b"data: [DONE]\n\n")
        self.end_body()

    def end_body(self) -> None:
        self.send_bytes(b"")
        self.ended.set()

    def break_off(self) -> None:
        """The connection ends in the middle of the answer."""
        self._handler.connection.shutdown(socket.SHUT_RDWR)
        self.ended.set()

    def wait_for_disconnect(self) -> None:
        """Until the client has closed the connection. TimeoutError if it does not."""
        self._handler.connection.settimeout(TIMEOUT)
        with suppress(ConnectionResetError):
            assert self._handler.connection.recv(1) == b""
        self.ended.set()


class StandInServer:
    """A context manager: it serves the page, models and metrics, and completions as the test answers them."""

    def __init__(self) -> None:
        self.models: list[dict[str, Any]] = [{"id": "tiny-llama", "max_model_len": 4096}]
        self.metrics = ""
        self.api_key: str | None = None
        """Needed under /v1, if there is one."""
        self.num_scrapes = 0
        self.page: dict[str, PageFile] = page_files()
        self._exchanges: Queue[Exchange] = Queue()
        self._open: list[Exchange] = []
        self._connections: set[socket.socket] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.owner = self  # type: ignore[attr-defined]
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> "StandInServer":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for exchange in self._open:
            exchange.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for connection in list(self._connections):
            with suppress(OSError):  # the client may have been quicker
                connection.shutdown(socket.SHUT_RDWR)

    def next_exchange(self) -> Exchange:
        """The next completion request. Empty if none comes."""
        return self._exchanges.get(timeout=TIMEOUT)

    def has_exchange(self) -> bool:
        """Whether a completion request waits to be taken."""
        return not self._exchanges.empty()

    def take(self, exchange: Exchange) -> None:
        self._open.append(exchange)
        self._exchanges.put(exchange)

    def note_connection(self, connection: socket.socket, *, is_open: bool) -> None:
        if is_open:
            self._connections.add(connection)
        else:
            self._connections.discard(connection)

    def accepts(self, headers: Message) -> bool:
        return self.api_key is None or headers["Authorization"] == f"Bearer {self.api_key}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def owner(self) -> StandInServer:
        owner: StandInServer = self.server.owner  # type: ignore[attr-defined]
        return owner

    def setup(self) -> None:
        super().setup()
        self.owner.note_connection(self.connection, is_open=True)

    def finish(self) -> None:
        self.owner.note_connection(self.connection, is_open=False)
        super().finish()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if file := self.owner.page.get(path):
            self.answer(200, file.content_type, file.content, dict(file.headers))
        elif path == "/metrics":
            self.owner.num_scrapes += 1
            self.answer(200, "text/plain; version=0.0.4", self.owner.metrics.encode())
        elif not self.owner.accepts(self.headers):
            self.refuse_key()
        elif path == "/v1/models":
            self.answer(200, "application/json", json.dumps({"object": "list", "data": self.owner.models}).encode())
        else:
            self.answer(404, "application/json", b'{"error": {"message": "Not Found", "code": 404}}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.owner.accepts(self.headers):
            self.refuse_key()
            return
        self.close_connection = True  # an answer in pieces may not end as HTTP wants it
        exchange = Exchange(self, body)
        self.owner.take(exchange)
        exchange.ended.wait(KEEP_OPEN)

    def refuse_key(self) -> None:
        message = {"error": {"message": "the API key is missing or wrong", "type": "AuthenticationError", "code": 401}}
        self.answer(401, "application/json", json.dumps(message).encode())

    def answer(self, status: int, content_type: str, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": content_type,
            "Content-Length": str(len(content)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Says nothing."""


def metrics_text(values: Iterable[tuple[str, str, float]], prefix: str = "vllm:") -> str:
    """Prometheus text of (name, engine, value) triples."""
    lines = [f'{prefix}{name}{{engine="{engine}",model_name="a {{b}} c"}} {value}' for name, engine, value in values]
    return "# HELP something\n# TYPE something gauge\n" + "\n".join(lines) + "\n"
