"""One line of JSON for each HTTP request."""

import logging
import sys
import time
from datetime import UTC, datetime

import msgspec
from starlette.types import Scope

_logger = logging.getLogger("pelton.server.access")


def start_access_log() -> None:
    """Let lines go to standard error as they are, whatever other loggers put before theirs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _logger.handlers = [handler]
    _logger.propagate = False
    _logger.setLevel(logging.INFO)


def log_request(scope: Scope, request_id: str, status: int, started: float) -> None:
    """`status`: 0 if no answer was begun, since the client had left. `started`: seconds of the monotonic clock."""
    client = scope.get("client")
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": request_id,
        "client": client[0] if client else None,
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "seconds": round(time.monotonic() - started, 6),
    }
    _logger.info("%s", msgspec.json.encode(line).decode())
