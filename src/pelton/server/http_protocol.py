"""HTTP/1.1 on one connection."""

import asyncio
from http import HTTPStatus
from typing import Any, Literal

import httptools
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pelton.server.errors import APIError

MAX_HEAD_BYTES = 64 << 10
"""Request line and headers; what comes between two pieces of a body, or after it, may be as large."""
HEAD_SECONDS = 30.0
"""How long a new connection may be silent, and how long a head may take from its first byte to its last."""
BODY_SECONDS = 60.0
"""How long a body may stop to come in."""
_LINGER_SECONDS = 5.0
"""How long a client whose head is too large may go on, so that it reads why nobody listens."""
_MAX_PIPELINED = 8
"""Requests that may wait for the one before them, until no more is read from the connection."""
_UPGRADE_HEADERS = frozenset({b"connection", b"upgrade", b"http2-settings"})


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol. It also limits heads and how long requests take to come in, refuses in the shape of all
    errors, ignores trailers, reads bodies of requests that wish for another protocol, answers HTTP/1.0 without chunks,
    and tells every request, not only the last one, that the client has left.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._part: Literal["head", "body"] | None = None
        """What of a request is coming in; None between two of them."""
        self._num_bytes = 0
        """What has come since something last got to its end, other than pieces of bodies."""
        self._deadline: float | None = None
        """When the client must have sent more, by the event loop's clock. The timer looks then at the latest."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_refused = False
        self._running: RequestResponseCycle | None = None
        """The request that is being answered; `cycle` is the last one of those that wait behind it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_more(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        self._num_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(APIError(400, "The request is not valid HTTP/1.1"))
        else:
            if self._num_bytes > MAX_HEAD_BYTES:
                self._refuse(_trailers_too_large() if self._part == "body" else _head_too_large())
            elif self._part == "body":
                self._expect_more(BODY_SECONDS)
            elif self._part is None and not self._num_bytes:
                self._deadline = None
            elif self._deadline is None:
                self._expect_more(HEAD_SECONDS)

    def on_message_begin(self) -> None:
        self._part = "head"
        self._deadline = None
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part == "head":  # trailers are headers to the parser
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # `data_received` has it read once more
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())
            raise ValueError("the parser must not go on")
        self._part = "body"
        self._num_bytes = 0
        super().on_headers_complete()
        if 0 < len(self.pipeline) <= _MAX_PIPELINED:
            self.flow.resume_reading()  # else nobody would notice that the client leaves

    def on_body(self, body: bytes) -> None:
        self._num_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._part = None
        self._num_bytes = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # it would hold the connection's memory
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end_running()

    def _end_running(self) -> None:
        """Tell the request that is being answered that nobody waits for it; those behind it never start."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if cycle.scope["http_version"] in ("0.9", "1.0"):
            app = _without_chunks(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _expect_more(self, seconds: float) -> None:
        self._deadline = self.loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(self._deadline, self._look_at_deadline)

    def _look_at_deadline(self) -> None:
        self._timer = None
        if self._deadline is None or self._is_refused or self.transport.is_closing():
            return
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._look_at_deadline)
            return
        is_answering = self._running is not None and not self._running.response_complete
        if is_answering and (self._part != "body" or self.cycle is not self._running):
            self._expect_more(HEAD_SECONDS)  # what comes behind it need not be read yet
        elif self._part is None and not self._num_bytes:
            self.transport.close()  # nothing has been asked
        else:
            message = "The request did not come in whole in time; send it again, without pauses"
            self._refuse(APIError(408, message, error_type="RequestTimeoutError"))

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Read the head again without the wish. The parser takes what comes after it for the other protocol, but it may
        be a body: Java's client sends such wishes with every first request."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(APIError(400, "This server is no proxy"))
            return
        wants_close = any(name == b"connection" and b"close" in value.lower() for name, value in self.headers)
        headers = [(name, value) for name, value in self.headers if name not in _UPGRADE_HEADERS]
        if wants_close:
            headers.append((b"connection", b"close"))
        lines = [b"%b %b HTTP/1.1" % (method, self.url), *(b"%b: %b" % header for header in headers), b"", rest]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self._num_bytes = 0
        self.data_received(b"\r\n".join(lines))

    def _refuse(self, error: APIError) -> None:
        """Say why, unless another answer is under way or this request has got one, and end the connection and what is
        being answered on it."""
        if self._is_refused:
            return
        self._is_refused = True
        running = self._running
        has_answer = running is not None and running.response_started
        self._end_running()
        if running is not None and has_answer:
            is_this = self._part == "body" and self.cycle is running
            if is_this or not running.response_complete:
                self.transport.close()
                return
        status = HTTPStatus(error.status)
        headers = {"Content-Type": "application/json", "Content-Length": len(error.body_json()), "Connection": "close"}
        lines = [f"HTTP/1.1 {status} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + error.body_json())
        if status is HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            # Bytes that come to a closed connection would make the client's system throw the answer away.
            self.loop.call_later(_LINGER_SECONDS, self.transport.close)
        else:
            self.transport.close()


def _head_too_large() -> APIError:
    return APIError(
        431, f"The request's address and headers are larger than {MAX_HEAD_BYTES} bytes; put what is long into the body"
    )


def _trailers_too_large() -> APIError:
    return APIError(
        431, f"What comes after the request's body, or within it, is larger than {MAX_HEAD_BYTES} bytes; leave it out"
    )


def _without_chunks(app: Any, cycle: RequestResponseCycle) -> Any:
    """For clients that do not know chunks: an answer without Content-Length ends with the connection."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        is_endless = False

        async def send_plain(message: Message) -> None:
            nonlocal is_endless
            if message["type"] == "http.response.start":
                is_endless = not any(name.lower() == b"content-length" for name, _ in message["headers"])
                if is_endless:
                    cycle.chunked_encoding = False
            elif is_endless:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return run
