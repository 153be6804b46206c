"""What a device offers to those who build and run models."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pelton.ops.arrays import AnyArray, Float32
from pelton.ops.dims import Dim
from pelton.ops.kv_cache import CacheLayout
from pelton.ops.packed_linear import PackedLinear, Rows
from pelton.ops.program import Program

Tile = tuple[Dim, int]
"""A dimension, and how many of its rows are computed at a time."""


class CompiledProgram(Protocol):
    """A program with memory for its values, made by a backend and run by it."""

    program: Program

    def output(self, name: str, sizes: Mapping[Dim, int]) -> AnyArray:
        """Where a run with these sizes leaves an output: a view, which the next run overwrites."""

    def outputs(self, sizes: Mapping[Dim, int]) -> dict[str, AnyArray]:
        """All of them."""


@dataclass(frozen=True, slots=True)
class Run:
    """One program of a step, and its inputs, which may be outputs of programs before it."""

    program: CompiledProgram
    sizes: Mapping[Dim, int]
    """May name dimensions that the program does not have: a step's header serves all programs."""
    inputs: Mapping[str, AnyArray]


class LinearPacker(Protocol):
    """Packs one weight [N, K], in pieces of rows, from one thread at a time."""

    def add(self, first_row: int, rows: Rows) -> None:
        """Take rows [n, K], the first of which is `first_row`; each row once, in any order.

        Rows in four bits are for the format `int4`, which keeps them as they are, and quantizes others by group.
        Raises ValueError for numbers that the format cannot hold.
        """

    def finish(self, bias: Float32 | None) -> PackedLinear:
        """The packed weight, and a bias [N], once all rows are there."""


class Backend(ABC):
    """One implementation of the operator set. Its programs, weights and caches are for itself only."""

    name: str
    """As told to the user."""
    is_native: bool
    cache_layout: CacheLayout
    """How the KV cache's blocks lie in memory; see `KVCacheLayer`."""

    @abstractmethod
    def linear_packer(
        self, num_rows: int, in_features: int, *, weight_format: str, gated: bool = False
    ) -> LinearPacker:
        """Begin to pack a weight. Gated: the first half of the rows is the gate's, the second up's."""

    @abstractmethod
    def zeros(self, num_bytes: int) -> AnyArray:
        """Zeroed bytes, which take memory only as they are written."""

    @abstractmethod
    def compile(self, program: Program, max_sizes: Mapping[Dim, int], tile: Tile | None = None) -> CompiledProgram:
        """Prepare a program for sizes up to `max_sizes`. With a tile, its rows are computed so many at a time."""

    @abstractmethod
    def run(self, runs: Sequence[Run]) -> None:
        """Run programs, one after the other. Raises ValueError for inputs that do not fit."""

    @abstractmethod
    def close(self) -> None:
        """Let go of threads; nothing can run any more."""
