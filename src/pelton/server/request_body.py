"""Bodies of requests: JSON, checked as far as no field is concerned."""

import re
from typing import Any

from starlette.requests import Request

from pelton.checks import has_lone_surrogate
from pelton.error_text import shown
from pelton.loader.text_files import parse_json
from pelton.server.errors import APIError

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_json(request: Request) -> dict[str, Any]:
    """The JSON object that a request brings.

    Raises APIError: 415 for another content type, 400 for anything that is not a valid JSON object.
    """
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
    try:
        return parse_body(await request.body())
    except ValueError as error:
        raise APIError(400, f"The request body is not a valid JSON object: {error}") from None


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
