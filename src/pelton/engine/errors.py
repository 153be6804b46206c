"""What may go wrong with a request that nothing is wrong with."""

SEND_AGAIN = "; please send the request again"
"""How the message of a request ends that failed since its engine core did, so that nothing may be wrong with it."""


class EngineDeadError(RuntimeError):
    """No engine core can take the request."""


class QueueFullError(RuntimeError):
    """As many requests are waiting as may."""

    def __init__(self, message: str, retry_after: int) -> None:
        """`retry_after`: seconds after which another attempt makes sense."""
        super().__init__(message)
        self.retry_after = retry_after
