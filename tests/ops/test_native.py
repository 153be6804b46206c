"""Every native operator against its reference, on every level that this machine runs."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.ops import B, C, KVCacheLayer, L, M, P, R, Recorder, Run, T, pack_rows
from pelton.ops.operator import Tolerance
from pelton.ops.operators import LINEAR, OPERATORS
from pelton.ops.packed_linear import FORMATS
from tests.support.native import native_backend, needs_native, pack_linear, run_operator, usable_levels

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


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize(("n", "k"), [(100, 100), (31, 65), (1, 33), (97, 200)])
def test_rows_do_not_change_each_other(level, weight_format, n, k):
    """Whatever tiles a number of rows is cut into, and whoever quantizes them: the bits of every row by itself."""
    backend = native_backend(level)
    rng = np.random.default_rng(n)
    weight = pack_linear(backend, [rng.standard_normal((n, k)).astype(np.float32)], None, weight_format=weight_format)
    op = Recorder("linear")
    x = op.input("x", (T, k), weight.input_dtype)
    program = backend.compile(op.finish({"y": op.linear(x, weight, None)}), {T: 129})
    rows = rng.standard_normal((129, k)).astype(weight.input_dtype)

    def product(rows):
        backend.run([Run(program, {T: len(rows)}, {"x": rows})])
        return program.output("y", {T: len(rows)}).copy()

    alone = np.concatenate([product(rows[i : i + 1]) for i in range(len(rows))])
    for num_rows in (*range(1, 41), 64, 129):
        assert product(rows[:num_rows]).tobytes() == alone[:num_rows].tobytes(), f"{num_rows} rows"
    for num_rows in (3, 6, 40):
        broken = rows[:num_rows].copy()
        broken[2, k - 1] = np.nan
        together = product(broken)
        assert np.isnan(together[2]).all()
        together[2] = alone[2]
        assert together.tobytes() == alone[:num_rows].tobytes(), f"NaN among {num_rows} rows"
    backend.close()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("weight_format", FORMATS)
def test_many_rows_however_they_are_cut(level, weight_format):
    """Blocks of rows for every thread, of numbers that leave the last ones empty or short: the same bits as alone."""
    rng = np.random.default_rng(9)
    for k, num_rows, num_threads in ((4608, 193, 2), (64, 257, 8), (64, 193, 6), (1536, 65, 2), (64, 130, 3)):
        weight = pack_rows([rng.standard_normal((50, k)).astype(np.float32)], weight_format=weight_format)
        x = rng.standard_normal((num_rows, k)).astype(weight.input_dtype)
        alone, together = native_backend(level, 1), native_backend(level, num_threads)
        (expected,) = run_operator(alone, LINEAR, (x[-1:], weight, None))
        (rows,) = run_operator(together, LINEAR, (x, weight, None))
        assert rows[-1:].tobytes() == expected.tobytes(), (k, num_rows, num_threads)
        (rows_of_one,) = run_operator(alone, LINEAR, (x, weight, None))
        assert rows.tobytes() == rows_of_one.tobytes(), (k, num_rows, num_threads)
        alone.close()
        together.close()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("weight_format", ["fp32", "bf16"])
def test_attention_to_huge_scores(level, weight_format):
    """The highest score has weight 1, however its product with the scale is rounded."""
    backend = native_backend(level)
    attention = next(operator for operator in OPERATORS if str(operator) == "attention")
    for seed in range(10):
        arguments = attention.generate(np.random.default_rng(seed), {T: 3, R: 1, L: 1}, weight_format)
        q = (arguments[0].astype(np.float32) * np.float32(1e10)).astype(arguments[0].dtype)
        (output,) = run_operator(backend, attention, (q, *arguments[1:]))
        (expected,) = references(attention, (q, *arguments[1:]))
        finite = np.isfinite(expected.astype(np.float32))
        assert np.isfinite(output.astype(np.float32))[finite].all(), f"seed {seed}"
    backend.close()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("weight_format", ["fp32", "bf16"])
@pytest.mark.parametrize("k", [1, 33, 64])
def test_columns_do_not_change_each_other(level, weight_format, k):
    """A column of NaN among the weights, first of a panel of columns, is NaN, and no other one."""
    backend = native_backend(level)
    rng = np.random.default_rng(k)
    weight = rng.standard_normal((97, k)).astype(np.float32)
    weight[48] = np.nan
    packed = pack_rows([weight], weight_format=weight_format)
    for num_rows in (1, 17, 40):
        x = rng.standard_normal((num_rows, k)).astype(packed.input_dtype)
        (product,) = run_operator(backend, LINEAR, (x, packed, None))
        assert (np.isnan(product) == (np.arange(97) == 48)).all(), f"{num_rows} rows"
    backend.close()


@pytest.mark.skipif(not {"avx512", "amx"} <= set(LEVELS), reason="needs both levels")
@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_matrices_of_integers_have_the_bits_of_vectors(weight_format):
    rng = np.random.default_rng(3)
    weight = pack_rows([rng.standard_normal((100, 200)).astype(np.float32)], weight_format=weight_format)
    backends = [native_backend(level) for level in ("avx512", "amx")]
    for num_rows in (16, 17, 33, 64, 129):
        x = rng.standard_normal((num_rows, 200)).astype("bfloat16")
        vectors, matrices = (run_operator(backend, LINEAR, (x, weight, None))[0] for backend in backends)
        assert vectors.tobytes() == matrices.tobytes(), f"{num_rows} rows"
    for backend in backends:
        backend.close()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_quantized_inputs_at_the_limits(level, weight_format):
    """Zeros, the smallest numbers that count, the largest, infinity and NaN, in any group: as the reference has it."""
    backend = native_backend(level)
    rng = np.random.default_rng(5)
    for num_rows in (1, 11):
        x = rng.standard_normal((11, 200)).astype(np.float32)
        x[0, 32:96] = 0.0
        x[1] *= 2.0**-103
        x[2, :64] = 1e-40
        x[3, 199] = 3.3e38
        x[4, 64] = np.inf
        x[5, 70] = -np.inf
        x[6, 0] = np.nan
        x[7, 5] = -(2.0**-99)
        x[7, 6:] *= 2.0**-120
        x[8] = np.round(x[8] * 4) / 4  # ties
        x[9, :4] = -127.0, 126.5, 2.5, -0.5
        x[10] = 2.0**-100
        weight = pack_rows([rng.standard_normal((50, 200)).astype(np.float32)], weight_format=weight_format)
        for first in range(0, 11, num_rows):
            arguments = x[first : first + num_rows].astype("bfloat16"), weight, None
            expected = references(LINEAR, arguments)
            actual = run_operator(backend, LINEAR, arguments)
            LINEAR.check(arguments, expected, actual, Tolerance(2e-5, 1e-6, "sums of a few products"))
    backend.close()


def written(backend, operator, arguments):
    """What a run writes: the bytes of its outputs, where they are defined, and of its caches."""
    given = copy.deepcopy(arguments)
    outputs = run_operator(backend, operator, given)
    masks = None if operator.defined is None else operator.defined(*arguments)
    rows = [slice(None) if masks is None or masks[i] is None else masks[i] for i in range(len(outputs))]
    caches = [argument.array.tobytes() for argument in given if isinstance(argument, KVCacheLayer)]
    return [output[defined].tobytes() for output, defined in zip(outputs, rows, strict=True)] + caches
