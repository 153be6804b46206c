"""Answers that end early when the client leaves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_T = TypeVar("_T")


class ClientLeftError(Exception):
    """The client has closed the connection, so nobody waits for the answer."""


async def run_until_disconnected(receive: Receive, work: Awaitable[_T]) -> _T:
    """The result of `work`, which is cancelled when the client leaves.

    The request's body must have been read. Raises ClientLeftError once the work has ended after that.
    """
    task = asyncio.current_task()
    assert task is not None
    num_cancellations = task.cancelling()
    is_running = True
    has_left = False

    def cancel(watcher: "asyncio.Task[None]") -> None:
        nonlocal has_left
        if is_running and not watcher.cancelled():
            watcher.exception()
            has_left = True
            task.cancel()

    watcher = asyncio.create_task(_wait_for_disconnect(receive))
    watcher.add_done_callback(cancel)
    try:
        return await work
    except asyncio.CancelledError:
        if has_left and task.uncancel() <= num_cancellations:
            raise ClientLeftError from None
        raise
    finally:
        is_running = False
        watcher.cancel()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class ClosableIterator(Protocol):
    """An iterator that must be closed, also if it has never begun."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


class EventStreamResponse(Response):
    """Sends each item of an iterator at once, and closes the iterator at the end or when the client leaves.

    Status and headers go out before the first item, so that clients and proxies see that the request was accepted while
    it waits. What goes wrong from then on must be an item.
    """

    media_type = "text/event-stream"

    def __init__(self, events: ClosableIterator) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        # Proxies must neither keep events nor collect them.
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientLeftError):
                await run_until_disconnected(receive, self._send_events(send))
        finally:
            await self._events.aclose()

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
