"""Runs single operators natively, on arguments made for the references."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pelton.ops import KVCacheLayer, Recorder
from pelton.ops.arrays import AnyArray
from pelton.ops.backend import Backend, Run
from pelton.ops.cpu import LEVELS, CPUBackend, load_library
from pelton.ops.cpu.library import Library
from pelton.ops.kv_cache import to_plain, to_tiled
from pelton.ops.operator import Operator
from pelton.ops.packed_linear import PackedLinear, Rows
from pelton.ops.rows_packer import pack_parts


def is_slow_machine() -> bool:
    """Whether a step in bfloat16 takes some times as long as where instructions multiply it: tests of whole models are
    fewer there."""
    return not {"avx512", "amx"}.intersection(usable_levels())


def usable_levels() -> list[str]:
    """The levels that are installed and run here."""
    usable = []
    for level in LEVELS:
        try:
            if load_library(level) is not None:
                usable.append(level)
        except ValueError:
            pass
    return usable


needs_native = pytest.mark.skipif(not usable_levels(), reason="no native kernels are installed")


def native_backend(level: str, num_threads: int = 2, **options: bool) -> CPUBackend:
    library = load_library(level)
    assert library is not None
    return CPUBackend(library, num_threads, **options)


def pack_linear(
    backend: Backend, parts: Sequence[Rows], bias: AnyArray | None, *, weight_format: str, gated: bool = False
) -> PackedLinear:
    """A backend's weight [N, K] that is given in parts along N, and a bias [N]. Gated: all gate rows come first."""
    return pack_parts(backend.linear_packer, parts, bias, weight_format=weight_format, gated=gated)


def to_native(backend: Backend, argument: Any) -> Any:
    """A weight or cache of the references' layout -> the backend's."""
    if isinstance(argument, PackedLinear):
        rows = argument.int4_rows() if argument.format == "int4" else argument.widened()
        cut = argument.out_features
        parts = [rows[:cut], rows[cut:]] if argument.gated else [rows]
        return pack_linear(backend, parts, argument.bias, weight_format=argument.format, gated=argument.gated)
    if isinstance(argument, KVCacheLayer):
        layer = KVCacheLayer(
            argument.name,
            num_kv_heads=argument.num_kv_heads,
            block_size=argument.block_size,
            head_size=argument.head_size,
            dtype=argument.dtype,
        )
        layer.bind(to_tiled(argument.array), backend.cache_layout)
        return layer
    return argument


def run_operator(backend: Backend, operator: Operator, arguments: Sequence[Any]) -> list[AnyArray]:
    """Record one launch, compile it, run it. -> copies of its outputs.

    Arrays become inputs of the program; a cache among the arguments is changed as the operator changes it.
    """
    op = Recorder(operator.name)
    inputs: dict[str, AnyArray] = {}
    recorded: list[Any] = []
    caches: list[tuple[KVCacheLayer, KVCacheLayer]] = []
    constants = {"weight", "frequencies"} if operator.name in ("rms_norm", "rotary") else set()
    for name, argument in zip(operator.parameters, arguments, strict=False):
        if isinstance(argument, np.ndarray) and name not in constants:
            inputs[name] = np.ascontiguousarray(argument)
            recorded.append(op.input(name, argument.shape, argument.dtype.name))
        else:
            native = to_native(backend, argument)
            if isinstance(argument, KVCacheLayer):
                caches.append((argument, native))
            recorded.append(native)
    values = op.launch(operator, *recorded)
    program = backend.compile(op.finish({f"{i}": value for i, value in enumerate(values)}), {})
    backend.run([Run(program, {}, inputs)])
    for plain, native in caches:
        plain.array[...] = to_plain(native.array)
    return [output.copy() for output in program.outputs({}).values()]


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one at every native call that computes something, with the number of its runs."""
    calls: list[int] = []
    run = Library.run

    def counted(self: Library, replay: int, runs: Any) -> None:
        calls.append(len(runs))
        run(self, replay, runs)

    monkeypatch.setattr(Library, "run", counted)
    return calls
