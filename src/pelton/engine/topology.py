"""Which processes there are, and where their sockets are bound."""

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from pelton.core.control_messages import Addresses
from pelton.engine.core_connections import FrontEndAddresses

_MAX_FOLDER_BYTES = 83
"""The path of a Unix socket has at most 103 bytes on every system; the longest names in the folder have 20."""


@contextmanager
def private_folder() -> Iterator[str]:
    """A folder that only this user can look into, for the time of the context."""
    folder = tempfile.mkdtemp(prefix="pelton-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Topology:
    """Data-parallel ranks and front ends, and on which machine they run."""

    num_ranks: int = 1
    num_local_ranks: int = 1
    """Ranks from `start_rank` on run on this machine."""
    start_rank: int = 0
    num_front_ends: int = 1
    address: str = "127.0.0.1"
    """Of the machine of the front ends, as other nodes reach it."""
    rpc_port: int = 0
    """Port of the control socket for other nodes."""

    @property
    def local_ranks(self) -> range:
        return range(self.start_rank, self.start_rank + self.num_local_ranks)

    @property
    def has_other_nodes(self) -> bool:
        return self.num_local_ranks < self.num_ranks


@dataclass(frozen=True)
class Endpoints:
    """The addresses of one run: by Unix sockets for this machine's processes, by TCP for those of other nodes.

    `lockstep` is told to each core on its own.
    """

    runtime_dir: str
    """A folder of our own, which holds the Unix sockets."""
    control: str
    local: Addresses
    remote_control: str | None = None
    remote: Addresses | None = None

    @classmethod
    def make(cls, topology: Topology) -> "Endpoints":
        """Choose addresses. Raises ValueError if other nodes could not reach this one, or there is no folder."""
        runtime_dir = _socket_folder()
        local = _addresses(topology, lambda name: f"ipc://{runtime_dir}/{name}")
        if not topology.has_other_nodes:
            return cls(runtime_dir, f"ipc://{runtime_dir}/control", local)
        try:
            with ExitStack() as probes:
                remote = _addresses(topology, lambda _: f"tcp://{topology.address}:{_free_port(topology, probes)}")
        except OSError as error:
            shutil.rmtree(runtime_dir)
            raise ValueError(
                f"data_parallel_address is {topology.address!r}, which is no address of this machine "
                f"({error.strerror}); give the one by which the other nodes reach it"
            ) from None
        control = f"tcp://{topology.address}:{topology.rpc_port}"
        return cls(runtime_dir, f"ipc://{runtime_dir}/control", local, control, remote)

    def front_end(self, index: int, topology: Topology) -> FrontEndAddresses:
        """What a front end binds, and where it connects."""
        both = [addresses for addresses in (self.local, self.remote) if addresses is not None]
        return FrontEndAddresses(
            index=index,
            inputs=[each.front_end_inputs[index] for each in both],
            outputs=[each.front_end_outputs[index] for each in both],
            control=self.control,
            published=self.local.coordinator_published,
            num_ranks=topology.num_ranks,
            num_front_ends=topology.num_front_ends,
        )

    def lockstep(self, generation: int) -> str | None:
        """Where rank 0 binds the socket of the group: another address each time that the group starts anew.

        Empty if ranks run on other nodes, with which there can be no group; None for a single rank.
        """
        if self.local.coordinator_loads is None:
            return None
        return f"ipc://{self.runtime_dir}/lockstep-{generation}" if self.remote is None else ""

    def remove(self) -> None:
        """Remove what is left of the Unix sockets."""
        shutil.rmtree(self.runtime_dir, ignore_errors=True)


def _socket_folder() -> str:
    """A new folder whose path is short enough for the addresses of Unix sockets."""
    try:
        folder = tempfile.mkdtemp(prefix="pelton-")
        if len(os.fsencode(folder)) > _MAX_FOLDER_BYTES:
            os.rmdir(folder)
            folder = tempfile.mkdtemp(prefix="pelton-", dir="/tmp")
    except OSError as error:
        raise ValueError(
            f"there is no folder for the sockets of the engine's processes ({error}); set TMPDIR to one whose path is "
            "short, and where files can be made"
        ) from None
    return folder


def _addresses(topology: Topology, make: Callable[[str], str]) -> Addresses:
    has_coordinator = topology.num_ranks > 1
    return Addresses(
        front_end_inputs=[make(f"input-{index}") for index in range(topology.num_front_ends)],
        front_end_outputs=[make(f"output-{index}") for index in range(topology.num_front_ends)],
        coordinator_loads=make("loads") if has_coordinator else None,
        coordinator_waves=make("waves") if has_coordinator else None,
        coordinator_published=make("published") if has_coordinator else None,
    )


def _free_port(topology: Topology, probes: ExitStack) -> int:
    """No other port that was found with these probes, which are open so long."""
    while True:
        probe = probes.enter_context(socket.create_server((topology.address, 0)))
        port: int = probe.getsockname()[1]
        if port != topology.rpc_port:
            return port
