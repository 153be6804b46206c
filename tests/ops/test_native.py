"""Every native operator against its reference, on every level that this machine runs."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.ops import B, C, KVCacheLayer, L, M, P, R, T
from pelton.ops.operators import OPERATORS
from tests.support.native import native_backend, needs_native, run_operator, usable_levels

LEVELS = usable_levels()
CASES = [(op, weight_format) for op in OPERATORS if not op.is_callback for weight_format in op.formats]
IDS = [f"{op}-{weight_format}" for op, weight_format in CASES]

pytestmark = needs_native


@pytest.fixture(scope="module", params=[(level, n) for level in LEVELS for n in (1, 2)], ids=lambda p: f"{p[0]}-{p[1]}")
def backend(request):
    backend = native_backend(*request.param)
    yield backend
    backend.close()


sizes = st.builds(
    lambda t, r, rest: {T: t, R: min(r, t), **rest},
    st.integers(1, 70),
    st.integers(1, 9),
    st.fixed_dictionaries(
        {L: st.integers(1, 70), C: st.integers(0, 5), M: st.integers(1, 3), B: st.integers(0, 9), P: st.integers(0, 9)}
    ),
)


def references(operator, arguments):
    outputs = [np.zeros(spec.shape, spec.dtype) for spec in operator.infer(*arguments)]
    with np.errstate(all="ignore"):
        operator.reference(*arguments, *outputs)
    return outputs


@pytest.mark.parametrize(("operator", "weight_format"), CASES, ids=IDS)
def test_operators(backend, operator, weight_format):
    @settings(max_examples=25, deadline=None)
    @given(sizes, st.integers(0, 2**32 - 1))
    def check(sizes, seed):
        arguments = operator.generate(np.random.default_rng(seed), sizes, weight_format)
        native = copy.deepcopy(arguments)
        expected = references(operator, arguments)
        actual = run_operator(backend, operator, native)
        tolerance = operator.tolerances[weight_format].doubled
        operator.check(arguments, expected, actual, tolerance)
        for before, after in zip(arguments, native, strict=True):
            if isinstance(before, KVCacheLayer):
                np.testing.assert_allclose(
                    after.array.astype(np.float32),
                    before.array.astype(np.float32),
                    rtol=tolerance.rtol,
                    atol=tolerance.atol,
                )

    check()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("operator", "weight_format"), CASES, ids=IDS)
def test_threads_do_not_change_bits(level, operator, weight_format):
    """One, two and five threads: the same bits, of outputs and of caches."""
    backends = [native_backend(level, num_threads) for num_threads in (1, 2, 5)]
    for seed in (7, 8, 9):
        arguments = operator.generate(
            np.random.default_rng(seed), {T: 67, R: 5, L: 67, C: 5, M: 3, B: 9, P: 9}, weight_format
        )
        results = [written(backend, operator, arguments) for backend in backends]
        for other in results[1:]:
            for index, (one, many) in enumerate(zip(results[0], other, strict=True)):
                assert one == many, f"seed {seed}, output or cache {index}"
    for backend in backends:
        backend.close()


def written(backend, operator, arguments):
    """What a run writes: the bytes of its outputs, where they are defined, and of its caches."""
    given = copy.deepcopy(arguments)
    outputs = run_operator(backend, operator, given)
    masks = None if operator.defined is None else operator.defined(*arguments)
    rows = [slice(None) if masks is None or masks[i] is None else masks[i] for i in range(len(outputs))]
    caches = [argument.array.tobytes() for argument in given if isinstance(argument, KVCacheLayer)]
    return [output[defined].tobytes() for output, defined in zip(outputs, rows, strict=True)] + caches
