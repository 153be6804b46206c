"""An API server process, one of several on one port: `python -m pelton.server.api_process`."""

import argparse
import logging
import os
import socket
import sys
from collections.abc import Sequence

import msgspec

from pelton.config import EngineArgs
from pelton.config.serving import ServeConfig
from pelton.engine.core_connections import CoreConnections, report_start_failure
from pelton.engine.errors import EngineDeadError
from pelton.engine.signals import ignore_ending_signals
from pelton.parent_watch import watch_parent
from pelton.server.front_end import FrontEndConfig, serve_front_end


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pelton.server.api_process", allow_abbrev=False)
    parser.add_argument("--parent-fd", type=int, required=True, help="pipe with the configuration")
    parser.add_argument("--runtime-dir", required=True, help="folder to remove when the parent ends")
    options = parser.parse_args(arguments)
    ignore_ending_signals()
    config = msgspec.msgpack.decode(_read_config(options.parent_fd), type=FrontEndConfig)
    watch_parent(options.parent_fd, options.runtime_dir)
    index = config.addresses.index
    logging.basicConfig(format=f"API server {index}: %(message)s")
    logging.getLogger("pelton").setLevel(logging.INFO if index == 0 else logging.WARNING)
    sockets = [socket.socket(fileno=fd) for fd in config.socket_fds]
    args = EngineArgs.create(**config.engine_args)
    serve = msgspec.convert(config.serve, ServeConfig)
    try:
        connections = CoreConnections(config.addresses)
        return serve_front_end(args, serve, connections, sockets, wait_for_all=not config.is_restart)
    except (ValueError, EngineDeadError) as error:
        report_start_failure(config.addresses, str(error))
        return 2


def _read_config(fd: int) -> bytes:
    size = int.from_bytes(_read(fd, 4), "little")
    return _read(fd, size)


def _read(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.read(fd, size - len(data))
        if not part:
            sys.exit("the parent ended before it had sent the configuration")
        data += part
    return data


if __name__ == "__main__":
    # What is left are threads that are daemons.
    status = main()
    sys.stderr.flush()
    os._exit(status)
