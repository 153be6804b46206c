"""What every HTTP request goes through before its route: plain ASGI, without tasks or queues of its own."""

import asyncio
import hmac
import ipaddress
import logging
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pelton.error_text import shown
from pelton.server.access_log import log_request
from pelton.server.errors import APIError, to_server_error
from pelton.server.request_ids import HEADER, given_request_id, new_request_id
from pelton.server.sse_response import ClientLeftError

OPEN_PATHS = frozenset({"/", "/health", "/ping", "/metrics", "/version", "/openapi.json"})
"""Paths that need no key; so do those of the web page's files."""
PAGE_FILES = "/page/"

_LINGER_SECONDS = 5.0
"""How long a client that sends too much may go on, so that it reads why nobody listens."""
_logger = logging.getLogger("pelton.server")


def error_response(error: APIError, headers: dict[str, str] | None = None) -> Response:
    return Response(
        error.body_json(), error.status, headers={**error.headers, **(headers or {})}, media_type="application/json"
    )


class RequestContext:
    """The outermost layer: takes the proxy's path off, gives the request its id, and writes the log.

    Routes find the id as `request.state.request_id`, and as `request.state.given_request_id` if the client gave it.
    """

    def __init__(self, app: ASGIApp, *, root_path: str, log_requests: bool) -> None:
        self._app = app
        self._root_path = root_path
        self._log_requests = log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        app, root = self._app, self._root_path
        if root and scope["path"] == root:
            app = _with_slash(scope)
        elif root and scope["path"].startswith(root + "/"):
            scope["path"] = scope["path"][len(root) :]
        given = next((given_request_id(value) for name, value in scope["headers"] if name == HEADER), None)
        request_id = given or new_request_id()
        scope.setdefault("state", {}).update(request_id=request_id, given_request_id=given)
        id_header = (HEADER, request_id.encode())
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], id_header]
            await send(message)

        if not self._log_requests:
            await app(scope, receive, send_with_id)
            return
        started = time.monotonic()
        try:
            await app(scope, receive, send_with_id)
        finally:
            log_request(scope, request_id, status, started)


def _with_slash(scope: Scope) -> ASGIApp:
    """To the web page, from whose path it finds its files."""
    query = scope["query_string"].decode("latin-1")
    return RedirectResponse(scope["path"] + "/" + (f"?{query}" if query else ""))


class OriginCheck:
    """For servers that listen on this machine only, and let everybody in: refuses pages whose site's name leads, or has
    begun to lead, to this machine. Browsers count such pages as the server's own (DNS rebinding)."""

    def __init__(self, app: ASGIApp, *, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            origin = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"), None)
            if origin is not None and not self._may(origin):
                message = f"Web pages of {shown(origin)} may not use this server; allow it with --allowed-origins"
                await error_response(APIError(403, message))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _may(self, origin: str) -> bool:
        if origin in self._allowed or "*" in self._allowed or not origin.lower().startswith("http://"):
            return True  # nobody gets a certificate for a site that is at another machine
        try:
            host = urlsplit(origin).hostname or ""
        except ValueError:
            return False
        if host == "localhost" or host.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True


class KeyCheck:
    """Lets only those in who bring a key, except to `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_open(scope["path"]) and not self._has_key(scope):
            error = APIError(401, "The API key is missing or wrong; send the header Authorization: Bearer KEY")
            await error_response(error, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
            return
        await self._app(scope, receive, send)

    @staticmethod
    def _is_open(path: str) -> bool:
        return path in OPEN_PATHS or path.startswith(PAGE_FILES)

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        # All are compared, so that the time tells nothing.
        matches = [hmac.compare_digest(token.strip(), key) for key in self._keys]
        return any(matches)


class ErrorAnswers:
    """Makes answers of exceptions."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def note_start(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, note_start)
        except (ClientLeftError, ClientDisconnect):
            pass  # nobody is there to be answered
        except Exception as error:  # whatever it is, the client gets an answer in the usual shape
            if has_begun:
                raise
            answer = to_server_error(error)
            if answer.status == 500:
                _logger.error("request %s failed with an internal error", scope["state"]["request_id"])
            await error_response(answer)(scope, receive, send)


class BodyLimit:
    """Refuses bodies of more than so many bytes, with and without Content-Length."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if len(length) > 18 or int(length) > self._max_bytes:  # the parser of HTTP lets only digits pass
            await self._refuse(scope, receive, send)
            return
        num_bytes = 0

        async def limited_receive() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise _BodyTooLargeError
            return message

        try:
            await self._app(scope, limited_receive, send)
        except _BodyTooLargeError:  # no route answers before it has read the body
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and then let the client go on for a while: bytes that come to a closed connection make its system
        throw the answer away."""
        error = APIError(
            413,
            f"The request body is larger than {self._max_bytes} bytes; send less, or raise max_request_bytes of the "
            "server",
        )
        response = error_response(error, {"Connection": "close"})
        await send({"type": "http.response.start", "status": error.status, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": response.body, "more_body": True})
        if not any(name == b"expect" for name, _ in scope["headers"]):
            try:
                async with asyncio.timeout(_LINGER_SECONDS):
                    await self._discard(receive)
            except TimeoutError:
                pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _discard(self, receive: Receive) -> None:
        num_left = self._max_bytes
        while num_left > 0:
            message = await receive()
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return
            num_left -= len(message["body"])


class _BodyTooLargeError(Exception):
    """More has come than may."""
