"""Where the values of a program live: buffers are shared by values whose lifetimes do not meet."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from pelton.ops.dims import Dim, concrete
from pelton.ops.program import Program, Value

ALIGNMENT = 64
"""Bytes; one cache line, and the widest vector register."""


@dataclass(frozen=True)
class Plan:
    """A slot of the arena for every value that a run makes; inputs stay where the caller has them."""

    slot_of: dict[int, int]
    """Value id to slot."""
    offsets: tuple[int, ...]
    """Where each slot begins, in bytes."""
    arena_bytes: int


def num_bytes(value: Value, sizes: Mapping[Dim, int]) -> int:
    return prod(concrete(value.shape, sizes)) * value.dtype.itemsize


def last_uses(program: Program) -> dict[int, int]:
    """Per value id, the index of the launch after which its buffer is free; outputs are read after the last one."""
    end = len(program.launches)
    last: dict[int, int] = {}
    for index, launch in enumerate(program.launches):
        last |= {value.id: index for value in (*launch.inputs, *launch.outputs)}
    return last | {value.id: end for value in program.outputs.values()}


def plan_buffers(program: Program, max_sizes: Mapping[Dim, int], tile: tuple[Dim, int] | None = None) -> Plan:
    """Assign slots in launch order, the best fitting free slot first.

    A launch's outputs get their slots while its inputs still hold theirs, so they never alias. The program's outputs
    have slots of their own. With a tile (a dimension, and how many of its rows are computed at a time), all launches
    run once for every tile: outputs have room for all rows, other values of that dimension for those of one tile.
    """
    last = last_uses(program)
    kept = {value.id for value in program.outputs.values()}
    tile_sizes = dict(max_sizes)
    if tile is not None:
        dim, num_rows = tile
        tile_sizes[dim] = min(num_rows, max_sizes[dim])
    slot_of: dict[int, int] = {}
    capacities: list[int] = []
    free: set[int] = set()

    def assign(value: Value) -> None:
        size = num_bytes(value, max_sizes if value.id in kept else tile_sizes)
        if not free or value.id in kept:
            capacities.append(0)
            slot = len(capacities) - 1
        else:
            # The tightest slot that holds the value, else the largest, which grows.
            slot = min(free, key=lambda s: (capacities[s] < size, abs(capacities[s] - size), s))
            free.remove(slot)
        capacities[slot] = max(capacities[slot], size)
        slot_of[value.id] = slot

    for index, launch in enumerate(program.launches):
        for value in launch.outputs:
            assign(value)
        ended = {value.id for value in (*launch.inputs, *launch.outputs) if last[value.id] == index}
        free.update(slot_of[value_id] for value_id in ended & slot_of.keys())

    offsets, end = [], 0
    for capacity in capacities:
        offsets.append(end)
        end += -(-capacity // ALIGNMENT) * ALIGNMENT
    return Plan(slot_of, tuple(offsets), end)
