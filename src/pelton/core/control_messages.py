"""Messages on the control socket: between the supervisor and engine cores, front ends and other nodes.

All are msgspec structs of plain data; the tag says which one it is.
"""

from typing import Annotated, Any

import msgspec

from pelton.core.messages import EngineStats

Epoch = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""How often a rank was started before."""
RankCount = Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
"""A rank, or a number of them."""


class Addresses(msgspec.Struct, array_like=True):
    """Where sockets are bound."""

    front_end_inputs: list[str]
    """One per front end: it sends requests from there."""
    front_end_outputs: list[str]
    """One per front end: it takes outputs there."""
    coordinator_loads: str | None = None
    """Where cores push their loads; None without a coordinator."""
    coordinator_waves: str | None = None
    """Where the coordinator publishes to cores."""
    coordinator_published: str | None = None
    """Where the coordinator publishes to front ends."""
    lockstep: str | None = None
    """Where rank 0 binds the socket of a group whose steps run together; empty if no such group can be, for its ranks
    are on several machines; None for a single rank."""


class CoreInfo(msgspec.Struct, array_like=True):
    """What a core that is ready can do."""

    num_blocks: int
    """KV-cache blocks, the null block not counted."""
    block_size: int
    max_model_len: int
    max_num_seqs: int
    description: str
    """Kernels, weights and threads, for people."""
    needs_lockstep: bool
    """Whether its steps wait for those of the other ranks, so that it cannot be started again alone."""


class CoreHello(msgspec.Struct, tag="core_hello", array_like=True):
    """Core: I am here, what am I to do?"""

    rank: int
    epoch: Epoch


class CoreWelcome(msgspec.Struct, tag="core_welcome", array_like=True):
    """To a core: load this model."""

    engine_args: dict[str, Any]
    addresses: Addresses
    num_ranks: int
    sent_at: float
    """Seconds of the supervisor's monotonic clock."""


class CoreReady(msgspec.Struct, tag="core_ready", array_like=True):
    """Core: I take requests now."""

    rank: int
    epoch: Epoch
    info: CoreInfo


class CoreFailed(msgspec.Struct, tag="core_failed", array_like=True):
    """Core: I cannot start, and end."""

    rank: int
    epoch: Epoch
    message: str


class FrontEndHello(msgspec.Struct, tag="front_end_hello", array_like=True):
    """Front end: tell me which cores there are, from now on."""

    index: int


class FrontEndFailed(msgspec.Struct, tag="front_end_failed", array_like=True):
    """Front end that is a process: I cannot start, and end."""

    index: int
    message: str


class CoreDown(msgspec.Struct, tag="core_down", array_like=True):
    """To front ends: this core is gone, and with it all that it had."""

    rank: int
    epoch: int
    reason: str
    is_final: bool
    """It is not started again."""
    was_ready: bool
    """Whether it, or one before it, ever took requests."""


class CoordinatorLost(msgspec.Struct, tag="coordinator_lost", array_like=True):
    """To front ends: what the coordinator has published counts no more."""


class FrontEndLost(msgspec.Struct, tag="front_end_lost", array_like=True):
    """To cores: nobody waits for what this front end asked for."""

    index: int


class MetricsState(msgspec.Struct, array_like=True):
    """The figures that one front end has of one core."""

    rank: int
    counters: dict[str, int]
    finished: dict[str, int]
    """Choices by their finish reason."""
    histograms: dict[str, tuple[list[int], float]]
    """Name -> observations by bucket, and their sum."""
    stats: EngineStats | None
    """The core's last state that this front end knows."""


class MetricsCall(msgspec.Struct, tag="metrics_call", array_like=True):
    """Front end to supervisor: collect the figures of all front ends; supervisor to front ends: send yours."""

    call_id: int


class MetricsReply(msgspec.Struct, tag="metrics_reply", array_like=True):
    """The figures of one front end, or of all; the other way than `MetricsCall`."""

    call_id: int
    states: list[MetricsState]


class NodeHello(msgspec.Struct, tag="node_hello", array_like=True):
    """Another node: I run these ranks, with these arguments."""

    version: str
    """Of Pelton."""
    start_rank: RankCount
    num_ranks: RankCount
    data_parallel_size: int
    engine_args: dict[str, Any]


class NodeWelcome(msgspec.Struct, tag="node_welcome", array_like=True):
    """To another node: start your cores."""

    epochs: list[int]
    """Of the next start of each of its ranks."""


class NodeRefused(msgspec.Struct, tag="node_refused", array_like=True):
    """To another node: this does not fit."""

    message: str


class NodeCoreReady(msgspec.Struct, tag="node_core_ready", array_like=True):
    """To another node: this core of yours takes requests, so that it is worth being started again."""

    rank: int


class NodeAlive(msgspec.Struct, tag="node_alive", array_like=True):
    """Either way, once a second or so: I am still here."""


class NodeCoreDied(msgspec.Struct, tag="node_core_died", array_like=True):
    """Another node: one of my cores has ended."""

    rank: int
    epoch: Epoch
    reason: str
    is_final: bool


class Shutdown(msgspec.Struct, tag="shutdown", array_like=True):
    """To everybody: end."""


ToSupervisor = (
    CoreHello
    | CoreReady
    | CoreFailed
    | FrontEndHello
    | FrontEndFailed
    | MetricsCall
    | MetricsReply
    | NodeHello
    | NodeAlive
    | NodeCoreDied
)
FromSupervisor = (
    CoreWelcome
    | CoreDown
    | CoordinatorLost
    | FrontEndLost
    | MetricsCall
    | MetricsReply
    | NodeWelcome
    | NodeRefused
    | NodeCoreReady
    | NodeAlive
    | Shutdown
)
