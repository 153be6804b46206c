import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.ops import Interpreter, L, Program, Recorder, T, pack_linear
from tests.ops.helpers import WEIGHTS

RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((10, 4), dtype=np.float32)


def record() -> Program:
    op = Recorder("test")
    x = op.embed(op.input("token_ids", (T,), "int32"), TABLE)
    for _ in range(3):
        normed = op.rms_norm(x, np.ones(4, np.float32), 1e-5)
        x = op.linear(op.linear(normed, WEIGHTS[1]), WEIGHTS[2], x)
    rows = op.gather_rows(x, op.input("rows", (L,), "int32"))
    return op.finish({"hidden": x, "rows": rows})


def direct(token_ids: np.ndarray) -> np.ndarray:
    x = TABLE[token_ids]
    for _ in range(3):
        normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        x = x + normed @ WEIGHTS[1].array.T @ WEIGHTS[2].array.T
    return x


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=6))
def test_steps_of_all_sizes(steps: list[tuple[int, int]]) -> None:
    interpreter = Interpreter(record(), {T: 9, L: 4}, check_finite=True)
    for num_tokens, num_rows in steps:
        token_ids = RNG.integers(0, 10, num_tokens, dtype=np.int32)
        rows = RNG.integers(0, num_tokens, num_rows, dtype=np.int32)
        outputs = interpreter.run({T: num_tokens, L: num_rows}, {"token_ids": token_ids, "rows": rows})
        expected = direct(token_ids)
        np.testing.assert_allclose(outputs["hidden"], expected, rtol=1e-4, atol=1e-4)
        assert np.array_equal(outputs["rows"], outputs["hidden"][rows])


def test_a_steady_step_binds_nothing_anew() -> None:
    interpreter = Interpreter(record(), {T: 9, L: 4})
    inputs = {"token_ids": np.array([3], np.int32), "rows": np.array([0], np.int32)}
    first = interpreter.run({T: 1, L: 1}, inputs)["hidden"]
    before = first.copy()
    assert interpreter.run({T: 1, L: 1}, {**inputs, "token_ids": np.array([4], np.int32)})["hidden"] is first
    assert not np.array_equal(first, before)


def test_what_does_not_fit_is_refused() -> None:
    interpreter = Interpreter(record(), {T: 9, L: 4})
    token_ids, rows = np.zeros(2, np.int32), np.zeros(1, np.int32)
    sizes = {T: 2, L: 1}
    with pytest.raises(ValueError, match="T = 10 is not within 0 and 9"):
        interpreter.run({T: 10, L: 1}, {"token_ids": np.zeros(10, np.int32), "rows": rows})
    with pytest.raises(ValueError, match=r"takes \['rows', 'token_ids'\], got \['token_ids'\]"):
        interpreter.run(sizes, {"token_ids": token_ids})
    with pytest.raises(ValueError, match=r"input token_ids must be int32 \[2\], got int64 \[2\]"):
        interpreter.run(sizes, {"token_ids": token_ids.astype(np.int64), "rows": rows})
    with pytest.raises(ValueError, match=r"input rows must be int32 \[1\], got int32 \[2\]"):
        interpreter.run(sizes, {"token_ids": token_ids, "rows": token_ids})


def test_an_error_names_its_launch() -> None:
    interpreter = Interpreter(record(), {T: 9, L: 4})
    with pytest.raises(IndexError) as caught:
        interpreter.run({T: 1, L: 1}, {"token_ids": np.array([10], np.int32), "rows": np.zeros(1, np.int32)})
    assert caught.value.__notes__ == ["in test, launch 0: %1 x[T, 4] = embed(%0, table[10, 4], scale=1.0)"]


def test_check_finite_names_the_first_value() -> None:
    op = Recorder("overflow")
    y = op.input("x", (T, 1))
    large = pack_linear(np.array([[3e38]], np.float32))
    for _ in range(3):
        y = op.linear(y, large)
    program = op.finish({"y": y})
    interpreter = Interpreter(program, {T: 3}, check_finite=True)
    x = {"x": np.array([[0], [1], [0]], np.float32)}
    with np.errstate(all="ignore"), pytest.raises(FloatingPointError, match=r"is inf at \[1, 0\]") as caught:
        interpreter.run({T: 3}, x)
    assert caught.value.__notes__ == ["in overflow, launch 1: %2 y[T, 1] = linear(%1, weight[1, 1] fp32)"]
