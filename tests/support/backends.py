"""Backends and targets of tests: numpy, and the native kernels where they were built."""

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest

from pelton.layers import Target
from pelton.ops import Dim, Program
from pelton.ops.backend import Backend, Run
from pelton.ops.cpu import CPUBackend, load_library
from pelton.ops.interpreter import NumpyBackend

NUM_THREADS = 2


@cache
def numpy_backend() -> NumpyBackend:
    """Stops at the first NaN."""
    return NumpyBackend(check_nan=True)


@cache
def _native() -> CPUBackend | None:
    library = load_library()
    return None if library is None else CPUBackend(library, NUM_THREADS)


def numpy_target(weight_format: str = "fp32", kv_cache_dtype: str = "float32", block_size: int = 16) -> Target:
    return Target(numpy_backend(), weight_format, kv_cache_dtype, block_size)


def target_of(
    backend: str, weight_format: str = "fp32", kv_cache_dtype: str = "float32", block_size: int = 16
) -> Target:
    """`backend` is numpy or native; skips the test where there are no native kernels."""
    if backend == "numpy":
        return numpy_target(weight_format, kv_cache_dtype, block_size)
    native = _native()
    if native is None:
        pytest.skip("there are no native kernels")
    return Target(native, weight_format, kv_cache_dtype, block_size)


def run_once(
    backend: Backend, program: Program, sizes: Mapping[Dim, int], inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Compile a program for these sizes, and run it. -> outputs that nobody overwrites."""
    compiled = backend.compile(program, sizes)
    backend.run([Run(compiled, sizes, inputs)])
    return {name: array.copy() for name, array in compiled.outputs(sizes).items()}
