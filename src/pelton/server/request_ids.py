"""Ids of HTTP requests, which logs and answers carry."""

import re
from uuid import uuid4

HEADER = b"x-request-id"
_USABLE = re.compile(rb"[!-~]{1,128}")


def given_request_id(value: bytes) -> str | None:
    """A client's id, if it is up to 128 printable ASCII characters without spaces."""
    return value.decode() if _USABLE.fullmatch(value) else None


def new_request_id() -> str:
    return uuid4().hex
