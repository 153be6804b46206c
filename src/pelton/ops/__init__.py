"""The operator set, and programs over it."""

from pelton.ops.dims import R1, Dim, L, R, T
from pelton.ops.interpreter import Interpreter
from pelton.ops.kv_cache import KVCacheLayer
from pelton.ops.packed_linear import PackedLinear, pack_linear
from pelton.ops.program import Program, Value
from pelton.ops.recorder import Recorder

__all__ = [
    "R1",
    "Dim",
    "Interpreter",
    "KVCacheLayer",
    "L",
    "PackedLinear",
    "Program",
    "R",
    "Recorder",
    "T",
    "Value",
    "pack_linear",
]
