"""What tests of implementations let pass, and what not."""

from typing import Any

import numpy as np
import pytest

from pelton.ops import INVALID_LOGITS, NO_CANDIDATE, pack_rows
from pelton.ops.operator import Operator, Tolerance, check_close
from pelton.ops.operators import EDIT_LOGITS, LINEAR, LOGITS, OPERATORS, SAMPLE, WARP_LOGITS
from pelton.ops.reference.philox import Purpose, uniform
from tests.ops.test_operators import SIZES

EXACT = Tolerance(0.0, 0.0, "none")
LOOSE = Tolerance(1e-3, 1e-3, "loose")


def passes(operator: Operator, arguments: Any, expected: Any, actual: Any, tolerance: Tolerance = EXACT) -> bool:
    try:
        operator.check(arguments, [np.array(x) for x in expected], [np.array(x) for x in actual], tolerance)
    except AssertionError:
        return False
    return True


def test_tolerances_are_relative_and_absolute() -> None:
    assert LOOSE.doubled[:2] == (2e-3, 2e-3)
    assert "twice: loose" in LOOSE.doubled.reason
    expected = np.array([[100.0, 0.0, np.nan, np.inf, -np.inf]])
    check_close("x", expected, expected + np.array([[0.1, 0.001, 0, 0, 0]]), LOOSE)
    for column, value in enumerate((100.11, 0.0011, 0.0, 1e38, np.inf)):
        wrong = expected.copy()
        wrong[0, column] = value
        with pytest.raises(AssertionError, match=rf"x: 1 of 5 elements are off, first at \[0, {column}\]: .*loose"):
            check_close("x", expected, wrong, LOOSE)
        check_close("x", expected, wrong, LOOSE, np.zeros(1, bool))
    with pytest.raises(AssertionError, match="shape"):
        check_close("x", expected, expected[:, :4], LOOSE)


@pytest.mark.parametrize(("operator", "weight_format"), [(op, f) for op in OPERATORS for f in op.formats], ids=str)
def test_only_rows_that_are_not_defined_may_be_anything(operator: Operator, weight_format: str) -> None:
    arguments = operator.generate(np.random.default_rng(3), SIZES[3], weight_format)
    outputs = [np.zeros(spec.shape, spec.dtype) for spec in operator.infer(*arguments)]
    operator.reference(*arguments, *outputs)
    tolerance = operator.tolerances[weight_format]
    masks = [None] * len(outputs) if operator.defined is None else operator.defined(*arguments)
    for index, (output, mask) in enumerate(zip(outputs, masks, strict=True)):
        for row in range(len(output)):
            changed = list(outputs)
            changed[index] = output.copy()
            changed[index][row] = 77_777
            may_be_anything = output[row].size == 0 or (mask is not None and not mask[row])
            assert passes(operator, arguments, outputs, changed, tolerance) == may_be_anything


def test_operators_that_leave_rows_undefined_say_so() -> None:
    assert {str(op) for op in OPERATORS if op.defined} == {"logits", "process_logits", "edit_logits", "warp_logits"}
    assert LINEAR.defined is None
    (mask,) = EDIT_LOGITS.defined(None, np.array([0, -1, 5]), *[None] * 9)
    assert mask.tolist() == [True, False, True]


def test_best_ids_within_rounding() -> None:
    """Of logits 1, 1.0005 and 0.9, which is the best is a matter of rounding for the first two."""
    weight = pack_rows([np.array([[1.0], [1.0005], [0.9]], np.float32)])
    x = np.ones((2, 1), np.float32)
    arguments = x, weight, None, np.array([0, 1], np.int32)
    exact = np.array([[1.0, 1.0005, 0.9]] * 2)
    swapped = np.array([[np.nan] * 3, [1.0006, 1.0, 0.9]])
    assert passes(LOGITS, arguments, [exact, [1, 1]], [exact, [0, 1]], LOOSE)
    assert passes(LOGITS, arguments, [exact, [1, 1]], [swapped, [1, 0]], LOOSE)
    assert not passes(LOGITS, arguments, [exact, [1, 1]], [exact, [0, 1]], EXACT)
    assert not passes(LOGITS, arguments, [exact, [1, 1]], [exact, [2, 1]], LOOSE)
    assert not passes(LOGITS, arguments, [exact, [1, 1]], [exact, [NO_CANDIDATE, 1]], LOOSE)
    assert not passes(LOGITS, arguments, [exact, [1, 1]], [exact, [1, 0]], LOOSE), "not that of its own logits"
    assert not passes(LOGITS, arguments, [exact, [1, 1]], [swapped, [1, 1]], LOOSE), "not that of its own logits"
    assert not passes(LOGITS, arguments, [exact, [INVALID_LOGITS, 1]], [exact, [1, 1]], LOOSE)


def sampling(scores: list[float], warpers: list[float], position: int, *, is_edited: bool = False) -> tuple[Any, ...]:
    """One row. -> arguments of `sample`"""
    row, nothing = np.array([scores], np.float32), np.full((1, len(scores)), np.nan, np.float32)
    rows = (nothing, row) if is_edited else (row, nothing)
    zero = np.zeros(1, np.int32)
    best = np.argmax(row, axis=1).astype(np.int32)
    seed, index = np.zeros(1, np.uint64), zero - (0 if is_edited else 1)
    return rows[0], best, rows[1], index, np.array([warpers], np.float32), seed, zero, zero + np.int32(position)


def draw_at(share: float, within: float) -> int:
    """A position whose draw is that near to a share."""
    positions = np.arange(10**6, dtype=np.int32)
    zeros = np.zeros(len(positions), np.int32)
    draws = uniform(zeros.astype(np.uint64), zeros, positions, Purpose.SAMPLE)
    return int(np.flatnonzero(np.abs(draws - share) < within)[0])


@pytest.mark.parametrize("is_edited", [False, True])
def test_tokens_at_whose_border_the_draw_is(is_edited: bool) -> None:
    """Four tokens of equal weight; the draw is at the border of the first two."""
    for warpers, allowed in (
        ([1.0, 0, 1.0, 0.0], {0, 1}),
        ([0.0, 0, 1.0, 0.0], set()),
        ([1.0, 0, 0.9, 0.0], {0, 1}),
    ):
        arguments = sampling([2.0, 2.0, 2.0, 2.0], warpers, draw_at(0.25, 5e-6), is_edited=is_edited)
        for token_id in range(4):
            assert passes(SAMPLE, arguments, [[9]], [[token_id]]) == (token_id in allowed)
        assert not passes(SAMPLE, arguments, [[0]], [[NO_CANDIDATE]])
        assert not passes(SAMPLE, arguments, [[INVALID_LOGITS]], [[0]])
    away = sampling([2.0, 2.0, 2.0, 2.0], [1.0, 0, 1.0, 0.0], draw_at(0.26, 1e-3), is_edited=is_edited)
    assert not passes(SAMPLE, away, [[1]], [[0]])


def test_tokens_that_are_ruled_out_are_never_drawn() -> None:
    """Tokens without weight lie at the border too."""
    position = draw_at(0.5, 5e-6)
    scores = [2.0, -np.inf, 1.0, 2.0]
    for warpers in ([1.0, 2, 1.0, 0.0], [1.0, 0, 1.0, 0.5], [1.0, 0, 0.7, 0.0]):
        allowed = [passes(SAMPLE, sampling(scores, warpers, position), [[9]], [[i]]) for i in range(4)]
        assert allowed == [True, False, False, True]


def test_tokens_at_the_edge_of_the_nucleus() -> None:
    """The first has half of the mass: whether that is enough, and what is drawn, is a matter of rounding."""
    scores = [float(np.log(2.0)), 0.0, 0.0]
    for share, allowed in ((0.8, [True, True, False]), (0.3, [True, False, False])):
        arguments = sampling(scores, [1.0, 0, 0.5, 0.0], draw_at(share, 1e-3))
        assert [passes(SAMPLE, arguments, [[9]], [[i]]) for i in range(3)] == allowed
    sure = sampling(scores, [1.0, 0, 0.49, 0.0], draw_at(0.8, 1e-3))
    assert [passes(SAMPLE, sure, [[9]], [[i]]) for i in range(3)] == [True, False, False]


def test_candidates_at_the_edge() -> None:
    row = np.array([[np.log(2.0), 0.0, 0.0, -np.inf]], np.float32)
    nothing, index, asked = np.full_like(row, np.nan), np.array([-1], np.int32), np.array([1], np.int32)
    arguments = row, nothing, index, np.array([[1.0, 0, 0.5, 0.0]], np.float32), asked
    alone = np.array([[row[0, 0], -np.inf, -np.inf, -np.inf]])
    both = np.array([[row[0, 0], 0.0, -np.inf, -np.inf]])
    for right in (alone, both):
        for ours in (alone, both):
            assert passes(WARP_LOGITS, arguments, [right], [ours], LOOSE)
        for column, value in ((0, -np.inf), (0, 1.0), (2, 0.0), (3, 0.0), (1, np.nan)):
            wrong = both.copy()
            wrong[0, column] = value
            assert passes(WARP_LOGITS, arguments, [both], [wrong], LOOSE) is False, (column, value)
    copied = row, nothing, index, np.array([[0.0, 0, 0.5, 0.0]], np.float32), asked
    assert passes(WARP_LOGITS, copied, [row], [row], LOOSE)
    assert not passes(WARP_LOGITS, copied, [row], [both], LOOSE)
