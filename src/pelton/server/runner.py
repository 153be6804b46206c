"""Runs the HTTP application until somebody ends it."""

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn
from starlette.types import ASGIApp

from pelton.config.serving import ServeConfig
from pelton.server.http_protocol import HttpProtocol
from pelton.server.sockets import BACKLOG, start_listening

if TYPE_CHECKING:
    from pelton.engine.async_llm import AsyncLLM

_T = TypeVar("_T")
_logger = logging.getLogger("pelton.server")

KEEP_ALIVE_SECONDS = 75
"""How long an idle connection is kept: longer than usual proxies do (60 seconds), so that they are the ones to end it,
and not the server while a request is on its way."""
FAREWELL_SECONDS = 5.0
"""How long clients may take to read what is left, once no request is running."""
ABORT_SECONDS = 1.0
"""How long answers may take to notice that their connections have been closed."""


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on uvloop, or on asyncio's own loop where there is no uvloop."""
    try:
        from uvloop import new_event_loop  # not on every system
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


class StopRequest:
    """The wish that the server ends: first in good order, then at once."""

    def __init__(self) -> None:
        self.is_wanted = asyncio.Event()
        self.is_urgent = asyncio.Event()
        self.signal_number: int | None = None

    def ask(self, signal_number: int | None = None) -> None:
        """End in good order, or, asked again, at once."""
        if self.is_wanted.is_set():
            self.signal_number = signal_number
            self.is_urgent.set()
        self.is_wanted.set()

    async def unless_asked(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """The result of `work`; None if it was cancelled, for the server is to end."""
        task = asyncio.create_task(work)
        try:
            await _until(self.is_wanted, task)
        finally:
            task.cancel()
        await asyncio.wait([task])
        return None if task.cancelled() else task.result()

    @contextmanager
    def asked_by_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT ask."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask, int(number))
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


async def serve(
    app: ASGIApp,
    config: ServeConfig,
    sockets: Sequence[socket.socket],
    llm: "AsyncLLM",
    *,
    stop: StopRequest | None = None,
    on_ready: Callable[[], None] | None = None,
) -> int:
    """Answer until `stop` asks to end, by default until SIGTERM or SIGINT. `on_ready`: called when clients can connect.

    Then: no more connections; up to `shutdown_timeout` seconds for requests to finish; the rest is aborted, with
    `llm.shutdown`; a few seconds for clients to read what is left. Returns the exit status: 0, or what a second signal
    makes of it, which skips the waiting. Raises ValueError if another process listens there.
    """
    if stop is None:
        stop = StopRequest()
        with stop.asked_by_signals():
            return await serve(app, config, sockets, llm, stop=stop, on_ready=on_ready)
    start_listening(sockets)
    server = _Server(app, config, llm, stop)
    serving = asyncio.create_task(server.serve(list(sockets)))
    try:
        await _until(server.has_started, serving)
        if on_ready is not None and not serving.done():
            on_ready()
        await _until(stop.is_wanted, serving)
        if llm.num_unfinished_requests and config.shutdown_timeout:
            _logger.info(
                "Ending: %d requests have %g seconds to finish; a second signal ends at once",
                llm.num_unfinished_requests,
                config.shutdown_timeout,
            )
        server.should_exit = True
        await asyncio.shield(serving)
    finally:
        if not serving.done():
            stop.ask()
            stop.is_urgent.set()
            server.should_exit = True
            await asyncio.wait([serving])
    return 0 if stop.signal_number is None else 128 + stop.signal_number


async def _until(event: asyncio.Event, task: "asyncio.Task[Any]", timeout: float | None = None) -> None:
    """Wait for one of them, for at most so many seconds; the task goes on."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([waiting, task], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


class _Server(uvicorn.Server):
    """uvicorn, which leaves signals to others, and lets requests finish before connections end."""

    def __init__(self, app: ASGIApp, config: ServeConfig, llm: "AsyncLLM", stop: StopRequest) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpProtocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                forwarded_allow_ips=[],
                server_header=False,
                backlog=BACKLOG,
                workers=1,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                ssl_certfile=config.ssl_certfile,
                ssl_keyfile=config.ssl_keyfile,
                ssl_ca_certs=config.ssl_ca_certs,
                ssl_cert_reqs=ssl.CERT_NONE if config.ssl_ca_certs is None else ssl.CERT_REQUIRED,
            )
        )
        self.has_started = asyncio.Event()
        self._llm = llm
        self._stop = stop
        self._shutdown_timeout = config.shutdown_timeout

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        closing = asyncio.create_task(super().shutdown(sockets))  # begins to run first: nobody is accepted any more
        draining = asyncio.create_task(self._llm.drain(self._shutdown_timeout))
        await _until(self._stop.is_urgent, draining)
        draining.cancel()
        await self._llm.shutdown()
        await _until(self._stop.is_urgent, closing, FAREWELL_SECONDS)
        if not closing.done():
            await self._abort()
        await closing

    async def _abort(self) -> None:
        """Close all connections, which ends what answers them; what does not notice is cancelled."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        tasks = set(self.server_state.tasks)
        if tasks:
            _, hanging = await asyncio.wait(tasks, timeout=ABORT_SECONDS)
            for task in hanging:
                task.cancel()
        self.force_exit = True
