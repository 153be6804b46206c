"""Applications over real connections."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from pelton.config import ServeConfig
from pelton.server.runner import StopRequest, run, serve
from pelton.server.sockets import bind_sockets, server_urls

PATIENCE = 60.0
"""Seconds until a test gives up."""


class IdleLLM:
    """What the runner needs of an engine. Draining ends when `drained` is set, or at once if nothing is `pending`."""

    def __init__(self, pending: bool = False) -> None:
        self.pending = pending
        self.drained = asyncio.Event()
        self.drain_began = asyncio.Event()
        self.drain_timeouts: list[float] = []
        self.num_shutdowns = 0
        self.num_unfinished_requests = int(pending)
        self.ended = asyncio.Event()

    async def drain(self, timeout: float) -> bool:
        self.drain_timeouts.append(timeout)
        self.drain_began.set()
        if not self.pending:
            return True
        try:
            await asyncio.wait_for(self.drained.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def shutdown(self) -> None:
        self.num_shutdowns += 1
        self.ended.set()


@dataclass
class Running:
    """A server that runs in this process."""

    url: str
    port: int
    stop: StopRequest
    task: "asyncio.Task[int]"
    llm: Any
    client: httpx.AsyncClient = field(repr=False)

    async def ended(self) -> int:
        """The exit status."""
        return await asyncio.wait_for(asyncio.shield(self.task), PATIENCE)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def send(self, request: bytes) -> bytes:
        """All that comes back for these bytes, until the connection ends."""
        reader, writer = await self.connect()
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        return answer


@asynccontextmanager
async def running(app: Any, llm: Any = None, **config: Any) -> AsyncIterator[Running]:
    """A server on a free port, which ends with the context."""
    serve_config = ServeConfig(port=0, **config)
    sockets = bind_sockets(serve_config)
    llm = llm or IdleLLM()
    stop = StopRequest()
    ready = asyncio.Event()
    task = asyncio.create_task(serve(app, serve_config, sockets, llm, stop=stop, on_ready=ready.set))
    (url,) = server_urls(serve_config, sockets)
    port = sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        try:
            waiting = asyncio.create_task(ready.wait())
            await asyncio.wait([waiting, task], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            yield Running(url, port, stop, task, llm, client)
        finally:
            stop.ask()
            stop.is_urgent.set()
            await asyncio.wait([task], timeout=PATIENCE)
    await task


def in_loop(test: Callable[[], Awaitable[Any]]) -> Any:
    """Run a test's coroutine as the server does."""

    async def bounded() -> Any:
        return await asyncio.wait_for(test(), 2 * PATIENCE)

    return run(bounded())
