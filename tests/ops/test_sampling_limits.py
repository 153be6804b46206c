"""The sampling operators where numbers end: what generated arguments do not reach."""

from typing import Any

import numpy as np
import pytest

from pelton.ops import B, C, L, M, P, Recorder, mask_words
from pelton.ops.operator import Operator
from pelton.ops.operators import EDIT_LOGITS, LOGITS, LOGPROBS, SAMPLE, WARP_LOGITS
from pelton.ops.reference import edit_logits, logprobs, warp_logits

LARGEST = float(np.finfo(np.float32).max)
NONE = np.zeros(0, np.int32)


def edit(
    logits: list[float], bias: dict[int, float], counts: dict[int, int], penalties: tuple[float, float, float]
) -> list[float]:
    """One row."""
    edited = np.empty((1, len(logits)), np.float32)
    edit_logits(
        np.array([logits], np.float32),
        np.zeros(1, np.int32),
        np.full(1, -1, np.int32),
        np.zeros((0, mask_words(len(logits))), np.uint32),
        np.array([0, len(bias)], np.int32),
        np.array(list(bias), np.int32),
        np.array(list(bias.values()), np.float32),
        np.array([0, len(counts)], np.int32),
        np.array(list(counts), np.int32),
        np.array(list(counts.values()), np.int32),
        np.array([penalties], np.float32),
        edited,
    )
    return edited[0].tolist()


@pytest.mark.parametrize(
    ("bias", "counts", "penalties", "expected"),
    [
        ({0: 3e38, 1: -3e38}, {}, (1, 0, 0), [LARGEST, -LARGEST, -np.inf]),
        ({2: 100.0, 1: 1e38}, {}, (1, 0, 0), [2e38, -1e38, -np.inf]),
        ({}, {0: 0, 1: 0, 2: 0}, (1e-30, 0, 0), [LARGEST, -2e8, -np.inf]),
        ({}, {0: 0, 1: 0, 2: 0}, (1e30, 0, 0), [2e8, -LARGEST, -np.inf]),
        ({}, {0: 9, 1: 9, 2: 9}, (1, 1e38, 0), [-LARGEST, -LARGEST, -np.inf]),
        ({}, {0: 9, 1: 9, 2: 9}, (1, -1e38, 0), [LARGEST, LARGEST, -np.inf]),
        ({}, {0: 1, 1: 1, 2: 1}, (1, 0, -3e38), [LARGEST, 1e38, -np.inf]),
        ({}, {0: 0, 1: 0, 2: 0}, (1, 3e38, 3e38), [2e38, -2e38, -np.inf]),
    ],
)
def test_edited_logits_stay_finite_or_ruled_out(
    bias: dict[int, float], counts: dict[int, int], penalties: tuple[float, float, float], expected: list[float]
) -> None:
    edited = edit([2e38, -2e38, -np.inf], bias, counts, penalties)
    np.testing.assert_allclose(edited, expected, rtol=1e-6)


def test_zero_is_not_positive_and_the_rest_is_untouched() -> None:
    logits = np.random.default_rng(0).standard_normal(70).tolist()
    logits[5] = 0.0
    edited = edit(logits, {40: 0.0}, {5: 0}, (3.0, 1.0, 1.0))
    assert edited == np.array(logits, np.float32).tolist()


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 64, 65])
def test_masks_of_every_width(vocab_size: int) -> None:
    """Bits beyond the vocabulary mean nothing; -1 is no mask, whatever the masks say."""
    num_words = mask_words(vocab_size)
    assert num_words == len(range(0, vocab_size, 32))
    for allowed in range(vocab_size):
        masks = np.zeros((2, num_words), np.uint32)
        masks[1, allowed // 32] = 1 << allowed % 32
        if vocab_size % 32:
            masks[1, -1] |= np.uint32(2**32 - 2 ** (vocab_size % 32))
        edited = np.full((4, vocab_size), 55, np.float32)
        bounds, logits = np.zeros(4, np.int32), np.ones((4, vocab_size), np.float32)
        nothing = (bounds, NONE, np.zeros(0, np.float32), bounds, NONE, NONE, np.ones((3, 3), np.float32))
        edit_index = np.array([2, 1, 0, -1], np.int32)
        edit_logits(logits, edit_index, np.array([0, -1, 1], np.int32), masks, *nothing, edited)
        assert np.flatnonzero(edited[0] == 1.0).tolist() == [allowed]
        assert np.isneginf(edited[0]).sum() == vocab_size - 1
        assert (edited[1] == 1.0).all()
        assert np.isneginf(edited[2]).all()
        assert (edited[3] == 55).all(), "a row without an edit was written"


def test_warped_logits_of_low_temperatures_stay_finite() -> None:
    """Rows of temperatures at which quotients overflow: their softmax is what the sampler draws from."""
    row = [4.0, 3.5, -2.0, -np.inf, 4.0]
    warpers = np.array([[1e-45, 0, 1, 0], [1e-38, 0, 1, 0], [1e-38, 0, 1, 0], [2e-38, 0, 1, 0.5]], np.float32)
    logits = np.array([row, row, [-x for x in [4.0, 3.5, 2.0, np.inf, 5.0]], row], np.float32)
    warped = np.empty_like(logits)
    warp_logits(logits, np.full_like(logits, np.nan), np.full(4, -1, np.int32), warpers, np.zeros(4, np.int32), warped)
    assert warped[0].tolist() == [0.0, -LARGEST, -LARGEST, -np.inf, 0.0]
    np.testing.assert_allclose(warped[1], [0.0, -5e37, -LARGEST, -np.inf, 0.0], rtol=1e-6)
    np.testing.assert_allclose(warped[2], [-LARGEST, -LARGEST, -2e38, -np.inf, -LARGEST], rtol=1e-6)
    np.testing.assert_allclose(warped[3], [2e38, -np.inf, -np.inf, -np.inf, 2e38], rtol=1e-6)


def test_logprobs_across_the_whole_range() -> None:
    logits = np.array([[LARGEST, -LARGEST, -np.inf, 0.0]] * 2, np.float32)
    outputs = np.empty(2, np.float32), np.empty(2, np.int32), np.empty((2, 4), np.int32), np.empty((2, 4), np.float32)
    with np.errstate(all="warn"):
        logprobs(logits, np.array([0, 2], np.int32), np.array([4, 4], np.int32), 4, True, *outputs)
    assert outputs[0].tolist() == [0.0, -np.inf]
    assert outputs[1].tolist() == [1, 4]
    assert outputs[2].tolist() == [[0, 3, 1, 2]] * 2


def record(**changes: Any) -> None:
    """Edit logits of 40 tokens, with some inputs of other shapes."""
    op = Recorder("edits")
    shapes = {
        "logits": ((L, 40), "float32"),
        "edit_index": ((L,), "int32"),
        "mask_index": ((C,), "int32"),
        "masks": ((M, 2), "uint32"),
        "bias_start": ((C + 1,), "int32"),
        "bias_ids": ((B,), "int32"),
        "bias": ((B,), "float32"),
        "penalty_start": ((C + 1,), "int32"),
        "penalty_ids": ((P,), "int32"),
        "penalty_counts": ((P,), "int32"),
        "penalties": ((C, 3), "float32"),
    }
    op.edit_logits(*(op.input(name, *spec) for name, spec in (shapes | changes).items()))


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("masks", ((M, 1), "uint32"), r"masks must be uint32 \[M, 2\], got uint32 \[M, 1\]"),
        ("edit_index", ((C,), "int32"), r"edit_index must be int32 \[L\], got int32 \[C\]"),
        ("mask_index", ((L,), "int32"), r"bias_start must be int32 \[L\+1\], got int32 \[C\+1\]"),
        ("bias_start", ((C,), "int32"), r"bias_start must be int32 \[C\+1\], got int32 \[C\]"),
        ("bias", ((P,), "float32"), r"bias must be float32 \[B\], got float32 \[P\]"),
        ("penalty_counts", ((B,), "int32"), r"penalty_counts must be int32 \[P\], got int32 \[B\]"),
        ("penalties", ((C, 2), "float32"), r"penalties must be float32 \[C, 3\], got float32 \[C, 2\]"),
    ],
)
def test_recording_names_what_does_not_fit(name: str, spec: Any, message: str) -> None:
    record()
    with pytest.raises(ValueError, match=message):
        record(**{name: spec})


@pytest.mark.parametrize("operator", [LOGITS, EDIT_LOGITS, SAMPLE, WARP_LOGITS, LOGPROBS], ids=str)
def test_broken_rows_raise_no_floating_point_error(operator: Operator) -> None:
    """Not even where the caller asks for all of them; generated rows hold NaN, infinities, and nothing but -inf."""
    with np.errstate(all="raise", under="ignore"):
        for seed in range(10):
            sizes = {L: 50, C: 20, M: 2, B: 30, P: 50}
            arguments = operator.generate(np.random.default_rng(seed), sizes, "fp32")
            operator.reference(*arguments, *(np.empty(s.shape, s.dtype) for s in operator.infer(*arguments)))
