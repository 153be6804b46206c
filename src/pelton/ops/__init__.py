"""The operator set, and programs over it."""

from pelton.ops.backend import Backend, CompiledProgram, Run
from pelton.ops.backends import create_backend
from pelton.ops.dims import C1, R1, B, C, Dim, L, M, P, R, T, mask_words
from pelton.ops.kv_cache import KVCacheLayer
from pelton.ops.logits_hook import LogitsHook
from pelton.ops.packed_linear import PackedLinear
from pelton.ops.program import Program, Value
from pelton.ops.qk_norm import QKNorm
from pelton.ops.recorder import Recorder
from pelton.ops.reference.activations import Activation
from pelton.ops.reference.best_ids import INVALID_LOGITS, NO_CANDIDATE
from pelton.ops.rows_packer import pack_rows

__all__ = [
    "C1",
    "INVALID_LOGITS",
    "NO_CANDIDATE",
    "R1",
    "Activation",
    "B",
    "Backend",
    "C",
    "CompiledProgram",
    "Dim",
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
    "Run",
    "T",
    "Value",
    "create_backend",
    "mask_words",
    "pack_rows",
]
