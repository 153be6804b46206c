"""Why requests of a load have no whole answer."""

CANCELLED = "cancelled"
"""The kind of those that ended with the run, which was stopped early; they are no failures."""


class RequestError(Exception):
    """A kind, by which failures are counted, and what was said."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(f"{kind}: {message}" if message else kind)


def error_kind(error: str) -> str:
    """Of `RequestResult.error`; empty where that is."""
    return error.partition(": ")[0]
