"""The operator set, and programs over it."""

from pelton.ops.dims import C1, R1, B, C, Dim, L, M, P, R, T, mask_words
from pelton.ops.interpreter import Interpreter
from pelton.ops.kv_cache import KVCacheLayer
from pelton.ops.logits_hook import LogitsHook
from pelton.ops.packed_linear import PackedLinear, pack_linear
from pelton.ops.program import Program, Value
from pelton.ops.qk_norm import QKNorm
from pelton.ops.recorder import Recorder
from pelton.ops.reference.gated_activation import Activation
from pelton.ops.reference.sample import INVALID_LOGITS, NO_CANDIDATE

__all__ = [
    "C1",
    "INVALID_LOGITS",
    "NO_CANDIDATE",
    "R1",
    "Activation",
    "B",
    "C",
    "Dim",
    "Interpreter",
    "KVCacheLayer",
    "L",
    "LogitsHook",
    "M",
    "P",
    "PackedLinear",
    "Program",
    "QKNorm",
    "R",
    "Recorder",
    "T",
    "Value",
    "mask_words",
    "pack_linear",
]
