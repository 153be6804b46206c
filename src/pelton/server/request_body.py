"""Bodies of requests: JSON, checked as far as no field is concerned."""

import asyncio
import gc
import re
from threading import Lock
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from pelton.checks import has_lone_surrogate
from pelton.error_text import shown
from pelton.loader.text_files import parse_json
from pelton.server.errors import APIError, parse_request

_LARGE = 256 << 10
"""Bytes of a body that others should not wait for."""
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_Model = TypeVar("_Model", bound=BaseModel)


async def read_request(request: Request, model: type[_Model]) -> _Model:
    """What a request asks for.

    Raises APIError: 415 for another content type than JSON, 400 for anything that is not a valid JSON object or not of
    this shape.
    """
    _check_content_type(request)
    body = await request.body()
    if len(body) <= _LARGE:
        return _parsed(model, body)
    return await asyncio.to_thread(_parsed_without_pauses, model, body)


def _check_content_type(request: Request) -> None:
    given = request.headers.get("content-type", "")
    media_type = given.partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        # Browsers send other types, and none, across sites without asking first.
        raise APIError(
            415,
            f"The Content-Type must be application/json, got {shown(given) if given else 'none'}; with curl, add "
            "-H 'Content-Type: application/json'",
        )


def _parsed(model: type[_Model], body: bytes) -> _Model:
    try:
        content = parse_body(body)
    except ValueError as error:
        raise APIError(400, f"The request body is not a valid JSON object: {error}") from None
    return parse_request(model, content)


def _parsed_without_pauses(model: type[_Model], body: bytes) -> _Model:
    """The garbage collector would look at the objects of a large body again and again while they become more, and
    nothing else runs meanwhile."""
    with _COLLECTOR_PAUSE:
        return _parsed(model, body)


class _CollectorPause:
    """Keeps the garbage collector from running, as long as anybody is in the context."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_inside = 0

    def __enter__(self) -> None:
        self._count(1)

    def __exit__(self, *_: object) -> None:
        self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self._num_inside += change
            if self._num_inside:
                gc.disable()
            else:
                gc.enable()


_COLLECTOR_PAUSE = _CollectorPause()


def parse_body(body: bytes) -> dict[str, Any]:
    """Raises ValueError."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8, at byte {error.start}") from None
    content = parse_json(text, finite=True)
    if _SURROGATE_ESCAPE.search(body):
        _check_texts(content)
    return content


def _check_texts(content: object) -> None:
    """Raise ValueError if a text or a name, at any depth, is not valid Unicode."""
    pending = [content]
    while pending:
        value = pending.pop()
        if isinstance(value, str) and has_lone_surrogate(value):
            raise ValueError("it has a lone surrogate, which is no Unicode text")
        if isinstance(value, dict):
            pending += value.keys()
            pending += value.values()
        elif isinstance(value, list):
            pending += value
