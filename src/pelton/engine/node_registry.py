"""The other nodes, as the first one knows them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import monotonic
from typing import Any

from pelton.core.control_messages import FromSupervisor, NodeAlive, NodeHello
from pelton.engine.topology import Topology
from pelton.error_text import shown
from pelton.version import __version__

NODE_SILENCE = 15.0
"""Seconds without a sign of life after which another node counts as gone."""
_BEAT = 1.0
"""Seconds between two signs of life for other nodes."""
_MAX_MISSED = 2
"""A node that cannot be reached so many times in a row is gone; once may be a connection that is made anew."""


@dataclass
class _Node:
    ranks: range
    heard_at: float
    num_missed: int = 0
    """Signs of life, in a row, that could not be sent."""


class NodeRegistry:
    """Nodes by the identities of their control sockets, and which ranks each of them has."""

    def __init__(self, args: dict[str, Any], topology: Topology, send: Callable[[bytes, FromSupervisor], bool]) -> None:
        """`args`: what every node must have. `send`: returns whether there is a connection."""
        self._args = args
        self._topology = topology
        self._send = send
        self._nodes: dict[bytes, _Node] = {}
        self._next_beat = 0.0

    @property
    def identities(self) -> Collection[bytes]:
        return self._nodes.keys()

    def refusal_of(self, hello: NodeHello) -> str:
        """Why a node cannot join; empty if it can."""
        if hello.version != __version__:
            return f"Pelton is of version {__version__} on the first node and {shown(hello.version)} here"
        num_ranks, local_ranks = self._topology.num_ranks, self._topology.local_ranks
        if hello.data_parallel_size != num_ranks:
            return f"data_parallel_size is {num_ranks} on the first node and {hello.data_parallel_size} here"
        ranks = ranks_of(hello)
        if not ranks or ranks.stop > num_ranks:
            return f"{_text(ranks)} of this node are not among the {num_ranks} that there are"
        if _overlap(ranks, local_ranks):
            return (
                f"{_text(ranks)} of this node overlap with {_text(local_ranks)} of the first node; "
                "set data_parallel_start_rank"
            )
        for name, value in self._args.items():
            if hello.engine_args.get(name) != value:
                return f"{name} is {value!r} on the first node and {hello.engine_args.get(name)!r} here"
        for identity, node in self._nodes.items():
            if _overlap(node.ranks, ranks) and self._send(identity, NodeAlive()):
                return (
                    f"{_text(ranks)} of this node overlap with {_text(node.ranks)} of another one; "
                    "set data_parallel_start_rank"
                )
        return ""

    def add(self, identity: bytes, hello: NodeHello) -> list[range]:
        """A node that is not refused. Returns the ranks of those in whose place it comes, which are gone."""
        ranks = ranks_of(hello)
        replaced = [other for other, node in self._nodes.items() if _overlap(node.ranks, ranks)]
        lost = [self._nodes.pop(other).ranks for other in replaced]
        self._nodes[identity] = _Node(ranks, monotonic())
        return lost

    def has_joined(self, identity: bytes, hello: NodeHello) -> bool:
        """Whether this is a hello that the node has repeated, for it knows of no answer."""
        return identity in self._nodes and self._nodes[identity].ranks == ranks_of(hello)

    def node_of(self, rank: int) -> bytes | None:
        """The node that runs the rank."""
        return next((identity for identity, node in self._nodes.items() if rank in node.ranks), None)

    def has(self, identity: bytes, rank: int) -> bool:
        """Whether this node runs the rank."""
        return identity in self._nodes and rank in self._nodes[identity].ranks

    def note_alive(self, identity: bytes) -> bool:
        """Whether the node is known."""
        if identity not in self._nodes:
            return False
        self._nodes[identity].heard_at = monotonic()
        return True

    def take_lost(self) -> list[tuple[range, str]]:
        """The ranks of nodes that are gone since the last call, and why. To be called at least once a second."""
        now = monotonic()
        if now < self._next_beat:
            return []
        self._next_beat = now + _BEAT
        lost = []
        for identity, node in list(self._nodes.items()):
            node.num_missed = 0 if self._send(identity, NodeAlive()) else node.num_missed + 1
            is_gone = node.num_missed >= _MAX_MISSED
            if is_gone or now - node.heard_at > NODE_SILENCE:
                del self._nodes[identity]
                lost.append((node.ranks, "its node is gone" if is_gone else "its node is silent"))
        return lost


def ranks_of(hello: NodeHello) -> range:
    return range(hello.start_rank, hello.start_rank + hello.num_ranks)


def _overlap(one: range, other: range) -> bool:
    return max(one.start, other.start) < min(one.stop, other.stop)


def _text(ranks: range) -> str:
    return f"rank {ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start} to {ranks.stop - 1}"
