"""HTTP/1.1 on one connection."""

from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pelton.server.errors import APIError

MAX_HEAD_BYTES = 64 << 10
"""Request line and headers."""
_LINGER_SECONDS = 5.0
"""How long a client whose head is too large may go on, so that it reads why nobody listens."""
_MAX_PIPELINED = 8
"""Requests that may wait for the one before them, until no more is read from the connection."""
_UPGRADE_HEADERS = frozenset({b"connection", b"upgrade", b"http2-settings"})


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol. It also limits heads, refuses in the shape of all errors, reads bodies of requests that wish
    for another protocol, and tells every request, not only the last one, that the client has left.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_head = True
        self._num_head_bytes = 0
        self._is_refused = False
        self._running: RequestResponseCycle | None = None
        """The request that is being answered; `cycle` is the last one of those that wait behind it."""

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        if self._is_in_head:
            self._num_head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(APIError(400, "The request is not valid HTTP/1.1"))
        else:
            if self._is_in_head and self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse(_head_too_large())

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # `data_received` has it read once more
        self._is_in_head = False
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())
            raise ValueError("the parser must not go on")
        super().on_headers_complete()
        if 0 < len(self.pipeline) <= _MAX_PIPELINED:
            self.flow.resume_reading()  # else nobody would notice that the client leaves

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._is_in_head = True
        self._num_head_bytes = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # it would hold the connection's memory
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

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
        self._num_head_bytes = 0
        self.data_received(b"\r\n".join(lines))

    def _refuse(self, error: APIError) -> None:
        """Say why, unless another answer is under way, and end the connection."""
        if self._is_refused:
            return
        self._is_refused = True
        if self._running is not None and self._running.response_started and not self._running.response_complete:
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
