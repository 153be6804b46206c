"""Messages between data-parallel engine cores, their coordinator and front ends.

All are msgspec structs of plain data, each a ZeroMQ message of one frame.
"""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class CoreLoad(msgspec.Struct, array_like=True, gc=False, frozen=True, tag="CORE_LOAD"):
    """Core to coordinator: its load, and where it stands in lockstep."""

    rank: Count
    num_waiting: Count
    num_running: Count
    wave: Count = 0
    """The wave it runs, or will run next."""
    is_running: bool = False
    """Whether that wave runs; never, if the cores do not step in lockstep."""


class WaveComplete(msgspec.Struct, array_like=True, gc=False, frozen=True, tag="WAVE_COMPLETE"):
    """Rank 0 to coordinator: all ranks agreed that nobody has work, and pause before the next wave."""

    wave: Count


class StartWave(msgspec.Struct, array_like=True, gc=False, frozen=True, tag="START_DP_WAVE"):
    """Coordinator to all cores: some rank runs this wave, so all must. It may come late, twice, or after the end."""

    wave: Count


class LoadsPublished(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Coordinator to front ends: the load of every core."""

    loads: list[tuple[Count, Count]]
    """Waiting and running requests of every rank; zeros of a rank that has not reported yet."""
    wave: Count
    is_running: bool


class LockstepVote(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Rank to rank 0: does it have unfinished work?"""

    round_number: Count
    has_unfinished: bool


class LockstepVerdict(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Rank 0 to the other ranks: does any of them have unfinished work?"""

    round_number: Count
    any_unfinished: bool
    error: str = ""
    """Why the ranks cannot agree any more."""
