"""One request's outputs, as they come."""

import asyncio
from collections.abc import Callable

from pelton.core.outputs import RequestOutput
from pelton.engine.input_processor import ProcessedRequest
from pelton.engine.request_state import RequestState


class RequestStream:
    """An async iterator of a request's outputs, for one consumer.

    An output is made when it is asked for, of all that has come since the last: a slow consumer holds up nobody.
    Whoever stops before the end must call `close`.
    """

    def __init__(
        self,
        request_id: str,
        request: ProcessedRequest,
        state: RequestState,
        abort: Callable[[], None],
    ) -> None:
        self.request_id = request_id
        self.prompt = request.prompt
        """The prompt's text, if it came as text."""
        self.prompt_token_ids = request.message.prompt_token_ids
        self._state = state
        self._abort = abort
        self._has_news = False
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """The request has something to show, or has ended."""
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> RequestOutput:
        if self._is_over:
            raise StopAsyncIteration
        while not self._has_news:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._has_news = False
        output = self._state.make_output()
        output.request_id = self.request_id
        self._is_over = output.finished
        return output

    def close(self) -> None:
        """End the request, if it has not finished; no outputs come afterwards."""
        if not self._is_over:
            self._is_over = True
            self._abort()
            self.wake()  # whoever waits in another task
