"""The operator set, and programs over it."""

from pelton.ops.dims import R1, Dim, L, R, T
from pelton.ops.interpreter import Interpreter
from pelton.ops.kv_cache import KVCacheLayer
from pelton.ops.packed_linear import PackedLinear, pack_linear
from pelton.ops.program import Program, Value
from pelton.ops.qk_norm import QKNorm
from pelton.ops.recorder import Recorder
from pelton.ops.reference.gated_activation import Activation

__all__ = [
    "R1",
    "Activation",
    "Dim",
    "Interpreter",
    "KVCacheLayer",
    "L",
    "PackedLinear",
    "Program",
    "QKNorm",
    "R",
    "Recorder",
    "T",
    "Value",
    "pack_linear",
]
