"""Programs over the numpy references."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.ops import L, Program, Recorder, Run, T, pack_rows
from pelton.ops.interpreter import NumpyBackend
from tests.ops.helpers import WEIGHTS

RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((10, 4), dtype=np.float32)


def record() -> Program:
    op = Recorder("test")
    x = op.embed(op.input("token_ids", (T,), "int32"), pack_rows([TABLE]))
    for _ in range(3):
        normed = op.rms_norm(x, np.ones(4, np.float32), 1e-5)
        x = op.linear(op.linear(normed, WEIGHTS[1]), WEIGHTS[2], x)
    rows = op.gather_rows(x, op.input("rows", (L,), "int32"))
    return op.finish({"hidden": x, "rows": rows})


class Runs:
    """A program, compiled for up to 9 tokens and 4 rows."""

    def __init__(self, program: Program, *, tile: int | None = None, check_nan: bool = False) -> None:
        self.backend = NumpyBackend(check_nan=check_nan)
        self.program = self.backend.compile(program, {T: 9, L: 4}, None if tile is None else (L, tile))

    def __call__(self, num_tokens: int, num_rows: int, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        sizes = {T: num_tokens, L: num_rows}
        self.backend.run([Run(self.program, sizes, inputs)])
        return self.program.outputs(sizes)


def direct(token_ids: np.ndarray) -> np.ndarray:
    x = TABLE[token_ids]
    for _ in range(3):
        normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        x = x + normed @ WEIGHTS[1].array.T @ WEIGHTS[2].array.T
    return x


@pytest.mark.parametrize("tile", [None, 1, 3, 64])
@settings(max_examples=25)
@given(steps=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=6))
def test_steps_of_all_sizes(tile: int | None, steps: list[tuple[int, int]]) -> None:
    run = Runs(record(), tile=tile, check_nan=True)
    for num_tokens, num_rows in steps:
        token_ids = RNG.integers(0, 10, num_tokens, dtype=np.int32)
        rows = RNG.integers(0, num_tokens, num_rows, dtype=np.int32)
        outputs = run(num_tokens, num_rows, token_ids=token_ids, rows=rows)
        np.testing.assert_allclose(outputs["hidden"], direct(token_ids), rtol=1e-4, atol=1e-4)
        assert np.array_equal(outputs["rows"], outputs["hidden"][rows])


def test_what_does_not_fit_is_refused() -> None:
    run = Runs(record())
    token_ids, rows = np.zeros(2, np.int32), np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="T = 10 is not within 0 and 9"):
        run(10, 1, token_ids=np.zeros(10, np.int32), rows=rows)
    with pytest.raises(ValueError, match=r"takes \['rows', 'token_ids'\], got \['token_ids'\]"):
        run(2, 1, token_ids=token_ids)
    with pytest.raises(ValueError, match=r"input token_ids must be int32 \[2\].*, got int64 \[2\]"):
        run(2, 1, token_ids=token_ids.astype(np.int64), rows=rows)
    with pytest.raises(ValueError, match=r"input rows must be int32 \[1\].*, got int32 \[2\]"):
        run(2, 1, token_ids=token_ids, rows=token_ids)


def test_an_error_names_its_launch() -> None:
    with pytest.raises(IndexError) as caught:
        Runs(record())(1, 1, token_ids=np.array([10], np.int32), rows=np.zeros(1, np.int32))
    assert caught.value.__notes__ == ["in test, launch 0: %1 x[T, 4] = embed(%0, table[10, 4] fp32, scale=1.0)"]


@pytest.mark.parametrize("weight_format", ["fp32", "bf16"])
def test_check_nan_names_the_first_value(weight_format: str) -> None:
    """Infinity is let pass, and divided by itself it is not."""
    large = pack_rows([np.array([[3e38]], np.float32)], weight_format=weight_format)
    op = Recorder("overflow")
    y = op.linear(op.input("x", (T, 1), large.input_dtype), large)
    normed = op.rms_norm(y, np.ones(1, np.float32), 0.0, out_dtype=large.input_dtype)
    run = Runs(op.finish({"y": op.linear(normed, large)}), check_nan=True)
    with pytest.raises(FloatingPointError, match=r"normed.* is NaN at \[1, 0\], first of all values") as caught:
        run(3, 0, x=np.array([[1], [10], [1]]).astype(large.input_dtype))
    assert caught.value.__notes__ == [f"in overflow, launch 1: {run.program.program.launches[1]}"]
