"""One API server: the application, and the engine cores that it reaches."""

import socket
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec

from pelton.config import EngineArgs
from pelton.config.serving import ServeConfig
from pelton.engine.core_connections import CoreConnections, FrontEndAddresses
from pelton.engine.start import connected_llm

if TYPE_CHECKING:
    from pelton.engine.served_model import ServedModel


class FrontEndConfig(msgspec.Struct):
    """What an API process needs to know; it comes through a pipe."""

    engine_args: dict[str, Any]
    serve: dict[str, Any]
    addresses: FrontEndAddresses
    socket_fds: list[int]
    is_restart: bool
    """Whether it takes the place of one that has ended, so that it can begin with the cores that are there."""

    @classmethod
    def make(
        cls,
        args: EngineArgs,
        serve: ServeConfig,
        addresses: FrontEndAddresses,
        sockets: Sequence[socket.socket],
        *,
        is_restart: bool,
    ) -> "FrontEndConfig":
        fds = [bound.fileno() for bound in sockets]
        return cls(args.to_plain(), msgspec.to_builtins(serve), addresses, fds, is_restart)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


def serve_front_end(
    args: EngineArgs,
    serve: ServeConfig,
    connections: CoreConnections,
    sockets: Sequence[socket.socket],
    *,
    wait_for_all: bool = True,
) -> int:
    """Answer requests on these sockets until a signal or the supervisor ends it. Returns the exit status.
    `wait_for_all`: begin when all cores are ready, not when one is.

    Raises ValueError for a model or arguments that cannot be served, EngineDeadError if all cores have ended for good.
    """
    # While the cores load the weights, in processes of their own.
    from pelton.engine.served_model import ServedModel
    from pelton.server.runner import run

    # Before signals are the event loop's business: it may load the model from elsewhere.
    model = ServedModel(args, progress=connections.addresses.index == 0 and sys.stderr.isatty())
    return run(_serve(args, serve, model, connections, sockets, wait_for_all))


async def _serve(
    args: EngineArgs,
    serve: ServeConfig,
    model: "ServedModel",
    connections: CoreConnections,
    sockets: Sequence[socket.socket],
    wait_for_all: bool,
) -> int:
    from pelton.server import runner
    from pelton.server.access_log import start_access_log
    from pelton.server.app import create_app
    from pelton.server.sockets import are_loopback, server_urls
    from pelton.server.summary import startup_summary

    stop = runner.StopRequest()
    connections.on_shutdown = stop.ask
    is_alone = connections.addresses.num_front_ends == 1
    async with AsyncExitStack() as stack:
        stack.enter_context(stop.asked_by_signals() if is_alone else nullcontext())
        connecting = connected_llm(
            args,
            model,
            connections,
            stall_timeout=serve.stall_timeout,
            max_num_queued_reqs=serve.max_num_queued_reqs,
            wait_for_all=wait_for_all,
        )
        llm = await stop.unless_asked(stack.enter_async_context(connecting))
        if llm is None:
            return 0

        def say_ready() -> None:
            if connections.addresses.index == 0 and wait_for_all:  # once, not after a restart
                summary = startup_summary(llm, model.checkpoint, serve, server_urls(serve, sockets))
                print(summary, file=sys.stderr)

        if serve.log_requests:
            start_access_log()
        app = create_app(llm, serve, is_local=are_loopback(sockets))
        return await runner.serve(app, serve, sockets, llm, stop=stop, on_ready=say_ready)
