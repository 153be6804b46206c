"""`pelton serve`: which processes there are, and who waits for whom."""

import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from pelton.config import EngineArgs
from pelton.config.serving import ParallelConfig, ServeConfig
from pelton.engine.child_process import ChildProcess
from pelton.engine.node import Node
from pelton.engine.signals import ending_signals_handled
from pelton.engine.start import engine_processes
from pelton.engine.supervisor import Supervisor
from pelton.engine.topology import Endpoints, Topology
from pelton.error_text import shown
from pelton.loader.text_files import read_any_text
from pelton.server.front_end import FrontEndConfig, serve_front_end
from pelton.server.sockets import bind_sockets

_FAREWELL_SECONDS = 15.0
"""What API processes may take longer than `shutdown_timeout`, until they count as hanging."""


def run_server(args: EngineArgs, serve: ServeConfig, parallel: ParallelConfig) -> int:
    """Serve until a signal ends it. Returns the exit status.

    Raises ValueError for what cannot be served: the model, the arguments, the address.
    """
    topology = Topology(
        num_ranks=parallel.data_parallel_size,
        num_local_ranks=len(parallel.local_ranks),
        start_rank=parallel.data_parallel_start_rank,
        num_front_ends=serve.api_server_count,
        address=parallel.data_parallel_address,
        rpc_port=parallel.data_parallel_rpc_port,
    )
    if parallel.headless:
        return Node(args, topology).run()
    serve = _with_keys_of_file(serve)
    with ending_signals_handled(_end_at_once):
        sockets = bind_sockets(serve)
        try:
            if serve.api_server_count == 1:
                return _serve_here(args, serve, topology, sockets)
            return _serve_in_processes(args, serve, topology, sockets)
        finally:
            for bound in sockets:
                bound.close()


def _with_keys_of_file(serve: ServeConfig) -> ServeConfig:
    """Raises ValueError if the file of keys cannot be read, or has none: everybody would be let in."""
    path = serve.api_key_file
    if path is None:
        return serve
    keys = [line.strip() for line in read_any_text(Path(path)).splitlines() if line.strip()]
    if not keys:
        raise ValueError(f"api_key_file is {shown(path)}, which has no key; write one into it, one a line")
    try:
        return replace(serve, api_key=(*serve.api_key, *keys))
    except ValueError:  # the keys beside it have been checked
        raise ValueError(
            f"api_key_file is {shown(path)}, which has a line that is no key; write one key a line, in printable ASCII "
            "characters without spaces, and nothing else"
        ) from None


def _end_at_once(signal_number: int) -> NoReturn:
    """What only prepares to serve."""
    raise SystemExit(0)


def _serve_here(args: EngineArgs, serve: ServeConfig, topology: Topology, sockets: Sequence[socket.socket]) -> int:
    with engine_processes(args, topology, progress=sys.stderr.isatty()) as connections:
        status = serve_front_end(args, serve, connections, sockets)
        if status:
            raise SystemExit(status)  # somebody is impatient: the engine's processes are not to be waited for
        return status


def _serve_in_processes(
    args: EngineArgs, serve: ServeConfig, topology: Topology, sockets: Sequence[socket.socket]
) -> int:
    started: set[int] = set()

    def start_front_end(index: int, endpoints: Endpoints) -> ChildProcess:
        addresses = endpoints.front_end(index, topology)
        config = FrontEndConfig.make(args, serve, addresses, sockets, is_restart=index in started)
        started.add(index)
        fds = [bound.fileno() for bound in sockets]
        arguments = ["--runtime-dir", endpoints.runtime_dir]
        return ChildProcess("pelton.server.api_process", arguments, pass_fds=fds, config=config.encode())

    def close_sockets() -> None:
        # Clients wait for as long as anybody might accept their connections.
        for bound in sockets:
            bound.close()

    supervisor = Supervisor(
        args,
        topology,
        start_front_end=start_front_end,
        before_end=close_sockets,
        front_end_seconds=serve.shutdown_timeout + _FAREWELL_SECONDS,
        progress=sys.stderr.isatty(),
    )

    signals: list[int] = []

    def stop(signal_number: int) -> None:
        signals.append(signal_number)
        supervisor.stop()

    with ending_signals_handled(stop):
        supervisor.run()
    if supervisor.failure:
        raise ValueError(supervisor.failure)
    return 0 if len(signals) < 2 else 128 + signals[-1]
