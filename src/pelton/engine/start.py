"""Starts an engine for front ends in this process, and ends it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from pelton.config import EngineArgs
from pelton.engine.core_connections import CoreConnections
from pelton.engine.supervisor import Supervisor
from pelton.engine.topology import Topology

if TYPE_CHECKING:
    from pelton.engine.async_llm import AsyncLLM
    from pelton.engine.served_model import ServedModel


@contextmanager
def engine_processes(args: EngineArgs, topology: Topology, *, progress: bool = False) -> Iterator[CoreConnections]:
    """The engine's processes, which load the model at once and end with the context, and the connections to them.

    If an exception ends the context, they are not given time to end.

    Raises ValueError if addresses cannot be bound.
    """
    supervisor = Supervisor(args, topology, progress=progress)
    supervisor.start()
    is_urgent = True
    try:
        connections = CoreConnections(supervisor.endpoints.front_end(0, topology))
        try:
            yield connections
        finally:
            connections.close()
        is_urgent = False
    finally:
        supervisor.stop(urgent=is_urgent)
        supervisor.join()


@asynccontextmanager
async def connected_llm(
    args: EngineArgs,
    model: "ServedModel",
    connections: CoreConnections,
    *,
    stall_timeout: float = 60.0,
    max_num_queued_reqs: int | None = None,
    wait_for_all: bool = True,
) -> "AsyncIterator[AsyncLLM]":
    """An `AsyncLLM` once the cores are ready; `AsyncLLM.connect` has more on its arguments and errors."""
    from pelton.engine.async_llm import AsyncLLM  # much to load, while the cores load the weights

    llm = await AsyncLLM.connect(
        args,
        model,
        connections,
        stall_timeout=stall_timeout,
        max_num_queued_reqs=max_num_queued_reqs,
        wait_for_all=wait_for_all,
    )
    try:
        yield llm
    finally:
        await llm.shutdown()
