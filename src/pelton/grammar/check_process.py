"""A process that checks constraints for another one, and is ended by the system where that takes too much.

It gets `StructuredOutputsParams` and answers with `Checked`, both as msgpack after their length in 4 bytes (little
endian), over a socket that it inherits; it ends when that ends.
"""

import argparse
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pelton.error_text import described, one_line
from pelton.grammar.registry import resolve
from pelton.parent_watch import watch_parent
from pelton.structured_outputs_params import StructuredOutputsParams

_LENGTH_BYTES = 4


class Checked(msgspec.Struct):
    """What came of a check: a backend that keeps the constraint, and how, or why there is none."""

    backend: str = ""
    disable_additional_properties: bool | None = None
    error: str = ""


def send_frame(connection: socket.socket, data: bytes) -> None:
    connection.sendall(len(data).to_bytes(_LENGTH_BYTES, "little") + data)


def receive_frame(connection: socket.socket) -> bytes:
    """Raises EOFError if the other side has ended."""
    return _receive(connection, int.from_bytes(_receive(connection, _LENGTH_BYTES), "little"))


def _receive(connection: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        received = connection.recv_into(view)
        if not received:
            raise EOFError
        view = view[received:]
    return bytes(data)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="pelton-check")
    parser.add_argument("--fd", type=int, required=True, help="the socket")
    parser.add_argument("--max-seconds", type=float, required=True, help="processor time of one check")
    parser.add_argument("--max-memory", type=int, required=True, help="bytes beside what it has at its beginning")
    parser.add_argument("--parent-fd", type=int, required=True, help="pipe that ends when the parent does")
    options = parser.parse_args(arguments)
    connection = socket.socket(fileno=options.fd)
    watch_parent(options.parent_fd)
    # What takes its time only once is no constraint's fault: libraries, their tables, Unicode's.
    resolve(StructuredOutputsParams(regex=r"\p{L}"))
    _limit_memory(options.max_memory)
    is_fit = True
    try:
        while is_fit:
            params = msgspec.msgpack.decode(receive_frame(connection), type=StructuredOutputsParams)
            # Its signal ends the process, whatever that computes.
            signal.setitimer(signal.ITIMER_PROF, options.max_seconds)
            checked, is_fit = _check(params)
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            send_frame(connection, msgspec.msgpack.encode(checked))
    except (EOFError, ConnectionError):
        pass  # nobody asks any more


def _check(params: StructuredOutputsParams) -> tuple[Checked, bool]:
    """What came of it, and whether the process can check more."""
    try:
        resolved = resolve(params)
        return Checked(resolved.backend, resolved.disable_additional_properties), True
    except ValueError as error:
        return Checked(error=str(error)), True
    except MemoryError:
        return Checked(error=f"{params.kind}: to check it takes too much memory; simplify it"), False
    except BaseException as error:  # of a library, such as a panic in Rust; it concerns one request
        return Checked(error=f"{params.kind}: it cannot be checked: {one_line(described(error))}"), False


def _limit_memory(num_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    statistics = Path("/proc/self/statm")
    if statistics.exists():
        wanted = int(statistics.read_text().split()[0]) * resource.getpagesize() + num_bytes
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


if __name__ == "__main__":
    main(sys.argv[1:])
