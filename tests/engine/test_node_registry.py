"""What the first node knows of the others."""

import pytest

from pelton.core.control_messages import NodeAlive, NodeHello
from pelton.engine import node_registry
from pelton.engine.node_registry import NODE_SILENCE, NodeRegistry
from pelton.engine.topology import Topology
from pelton.version import __version__

ARGS = {"model": "m", "seed": 0}
A, B = b"node-a", b"node-b"


class Network:
    """Who can be reached, and what time it is."""

    def __init__(self) -> None:
        self.reachable: set[bytes] = {A, B}
        self.sent: list[bytes] = []
        self.now = 1000.0

    def send(self, identity, message) -> bool:
        assert isinstance(message, NodeAlive)
        self.sent.append(identity)
        return identity in self.reachable

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def network(monkeypatch) -> Network:
    network = Network()
    monkeypatch.setattr(node_registry, "monotonic", network.monotonic)
    return network


@pytest.fixture
def nodes(network) -> NodeRegistry:
    return NodeRegistry(ARGS, Topology(num_ranks=4, num_local_ranks=1), network.send)


def hello(start=1, number=1, size=4, args=ARGS, version=__version__) -> NodeHello:
    return NodeHello(version, start, number, size, args)


def join(nodes, identity, start, number=1):
    assert nodes.refusal_of(hello(start, number)) == ""
    return nodes.add(identity, hello(start, number))


def test_nodes_that_fit(nodes):
    assert join(nodes, A, 1, 2) == []
    assert join(nodes, B, 3) == []
    assert list(nodes.identities) == [A, B]
    assert [(nodes.has(A, rank), nodes.has(B, rank)) for rank in range(5)] == [
        (False, False),
        (True, False),
        (True, False),
        (False, True),
        (False, False),
    ]


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (hello(size=3), "data_parallel_size is 4 on the first node and 3 here"),
        (hello(start=0, number=2), "ranks 0 to 1 of this node overlap with rank 0 of the first node; set data_"),
        (hello(start=3, number=2), "ranks 3 to 4 of this node are not among the 4 that there are"),
        (hello(args={"model": "other", "seed": 0}), "model is 'm' on the first node and 'other' here"),
        (hello(number=0), "ranks 1 to 0 of this node are not among the 4 that there are"),
        (hello(number=1 << 16), "ranks 1 to 65536 of this node are not among the 4 that there are"),
        (hello(version="0.0.7"), f"Pelton is of version {__version__} on the first node and '0.0.7' here"),
        (hello(args={"model": "m"}), "seed is 0 on the first node and None here"),
    ],
)
def test_nodes_that_do_not_fit(nodes, refused, words):
    assert words in nodes.refusal_of(refused)


def test_ranks_of_a_node_that_lives_are_taken(nodes, network):
    join(nodes, A, 1, 2)
    refusal = "ranks 2 to 3 of this node overlap with ranks 1 to 2 of another one; set data_parallel_start_rank"
    assert nodes.refusal_of(hello(2, 2)) == refusal
    network.reachable = {B}
    assert join(nodes, B, 2, 2) == [range(1, 3)]
    assert list(nodes.identities) == [B]


def test_a_hello_that_is_repeated(nodes):
    join(nodes, A, 1, 2)
    assert nodes.has_joined(A, hello(1, 2))
    assert not nodes.has_joined(A, hello(1, 1))
    assert not nodes.has_joined(B, hello(1, 2))
    assert [nodes.node_of(rank) for rank in range(4)] == [None, A, A, None]


def test_a_node_that_is_gone(nodes, network):
    join(nodes, A, 1)
    join(nodes, B, 2)
    assert nodes.take_lost() == []
    network.reachable = {B}
    lost = []
    for _ in range(20):
        network.now += 0.5
        nodes.note_alive(B)
        lost += nodes.take_lost()
    assert lost == [(range(1, 2), "its node is gone")]
    assert list(nodes.identities) == [B]
    assert not nodes.note_alive(A)


def test_a_connection_that_is_made_anew(nodes, network):
    join(nodes, A, 1)
    nodes.take_lost()
    for reachable in ({}, {A}, {}, {A}):
        network.reachable = reachable
        network.now += 1
        assert nodes.take_lost() == []
    assert list(nodes.identities) == [A]


def test_a_node_that_is_silent(nodes, network):
    join(nodes, A, 1)
    start = network.now
    while not (lost := nodes.take_lost()):
        network.now += 1
    assert lost == [(range(1, 2), "its node is silent")]
    assert NODE_SILENCE <= network.now - start <= NODE_SILENCE + 2


def test_signs_of_life_are_rare(nodes, network):
    join(nodes, A, 1)
    for _ in range(100):
        network.now += 0.01
        nodes.take_lost()
    assert network.sent in ([A], [A, A])
