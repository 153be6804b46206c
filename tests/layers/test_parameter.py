import numpy as np
import pytest

from pelton.layers import Embedding, Linear, Parameter, TiedHead, head
from pelton.ops import L, Recorder, T


def test_loading_checks() -> None:
    parameter = Parameter("norm", (4,))
    with pytest.raises(AssertionError, match="norm is not loaded"):
        _ = parameter.array
    with pytest.raises(ValueError, match=r"norm must have shape \[4\], got \[3\]"):
        parameter.load(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="norm must be float32, got float64"):
        parameter.load(np.zeros(4))
    array = np.arange(4, dtype=np.float32)
    parameter.load(array)
    assert parameter.array is array
    with pytest.raises(ValueError, match="norm is loaded twice"):
        parameter.load(array)


def test_unaligned_and_transposed_arrays_are_put_in_order() -> None:
    raw = np.zeros(4 * 6 + 1, np.uint8)[1:].view(np.float32).reshape(2, 3)
    for array in (raw, np.zeros((3, 2), np.float32).T):
        parameter = Parameter("x", (2, 3))
        parameter.load(array)
        assert parameter.array.flags.c_contiguous
        assert parameter.array.flags.aligned


def test_linear_packs_once_all_parts_are_loaded() -> None:
    linear = Linear([("q", 2), ("k", 1), ("v", 1)], 3)
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    q, k, v = linear.parameters()
    v.load(rows[3:])
    q.load(rows[:2])
    with pytest.raises(AssertionError, match=r"not loaded: \['k'\]"):
        _ = linear.weight
    k.load(rows[2:3])
    assert np.array_equal(linear.weight.array, rows)
    with pytest.raises(AssertionError, match="q is packed"):
        _ = q.array


def test_a_single_part_is_not_copied() -> None:
    linear = Linear([("o", 2)], 3)
    array = np.zeros((2, 3), np.float32)
    next(linear.parameters()).load(array)
    assert linear.weight.array is array


def test_a_tied_head_stores_nothing() -> None:
    embedding = Embedding("embed_tokens", 10, 4)
    embedding.weight.load(np.zeros((10, 4), np.float32))
    tied, untied = head("lm_head", embedding, tied=True), head("lm_head", embedding, tied=False)
    assert isinstance(tied, TiedHead)
    assert list(tied.parameters()) == []
    assert [(p.name, p.shape) for p in untied.parameters()] == [("lm_head", (10, 4))]
    op = Recorder("head")
    logits = tied(op, op.input("rows", (L, 4)))
    assert logits.shape == (L, 10)
    weight = op.finish({"logits": logits}).launches[0].arguments[1]
    assert weight.array is embedding.weight.array  # type: ignore[union-attr]
    assert embedding(op, op.input("token_ids", (T,), "int32")).shape == (T, 4)
