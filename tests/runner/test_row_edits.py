"""What a request's parameters do to its logits, token by token."""

import numpy as np
import pytest

from pelton import SamplingParams
from pelton.runner.row_edits import RowEdits, needs_edits
from tests.support.requests import core_request

V = 70


def edits(*, eos=(2,), bad_words=(), prompt=(5, 6, 5), **params) -> RowEdits:
    message = core_request("r", prompt, SamplingParams(**params), eos=eos, bad_words_token_ids=list(bad_words))
    assert needs_edits(message)
    return RowEdits(message, [], V)


def banned(row: RowEdits, *output: int) -> list[int] | None:
    """Tokens that the mask rules out; None if there is no mask."""
    mask = row.mask_at(np.array(output, np.int32), None)
    if mask is None:
        return None
    assert (mask.dtype, mask.shape) == (np.uint32, (3,))
    return [token_id for token_id in range(V) if not mask[token_id // 32] >> np.uint32(token_id % 32) & 1]


@pytest.mark.parametrize("penalty", [1e-300, 1e-46, 1e-40, 1.0001, 4e38, 1e300])
def test_repetition_penalties_stay_within_float32(penalty):
    penalties = np.array(edits(repetition_penalty=penalty).penalties, np.float32)
    assert 0.0 < penalties[0] < np.inf
    assert (penalties[0] > 1.0) == (penalty > 1.0)


def biases(row: RowEdits) -> dict[int, float]:
    ids, values = row.biases
    assert (ids.dtype, values.dtype) == (np.int32, np.float32)
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.0, "top_p": 0.5, "logprobs": 3, "stop": ["a"], "stop_token_ids": [3], "seed": 1}]
)
def test_most_requests_have_none(params):
    assert not needs_edits(core_request("r", [1], SamplingParams(**params)))


def test_mask_has_a_bit_for_every_allowed_token():
    row = edits(allowed_token_ids=[0, 31, 32, 69, 69])
    assert row.mask_at(np.zeros(5, np.int32), None).tolist() == [1 | 1 << 31, 1, 1 << 5]
    assert row.is_mask_only


def test_biases():
    row = edits(logit_bias={7: -100.0, 3: 0.5})
    assert biases(row) == {7: -100.0, 3: 0.5}
    assert banned(row) is banned(row, 1, 2, 3) is None
    assert [len(array) for array in row.counts_at(np.array([7], np.int32))] == [0, 0]
    assert not row.is_mask_only


def test_functions_act_without_a_mask():
    message = core_request("r", [1], SamplingParams())
    assert not RowEdits(message, [lambda *_: None], V).is_mask_only
    assert RowEdits(message, [], V).is_mask_only


def test_ends_are_banned_before_min_tokens():
    row = edits(min_tokens=2, stop_token_ids=[9, 33], eos=[2, 4], logit_bias={9: 5.0, 8: 1.0})
    assert banned(row) == banned(row, 1) == [2, 4, 9, 33]
    assert banned(row, 1, 1) is banned(row, 1, 1, 1) is None
    assert biases(row) == {9: 5.0, 8: 1.0}


def test_an_ignored_end_is_no_end():
    assert banned(edits(min_tokens=2, stop_token_ids=[9], ignore_eos=True)) == [9]
    assert banned(edits(min_tokens=2, ignore_eos=True)) is None


def test_bad_words_ban_their_last_token_after_the_others():
    row = edits(bad_words=[[7], [3, 4], [3, 5], [1, 3, 66]])
    assert banned(row) == [7]
    assert banned(row, 3) == [4, 5, 7]
    assert banned(row, 2, 1, 3) == [4, 5, 7, 66]
    assert banned(row, 1, 3, 2) == [7]
    assert banned(edits(bad_words=[[3, 4]]), 4) is None


def test_bad_words_look_at_the_output_only():
    assert banned(edits(prompt=[1, 3], bad_words=[[3, 4]])) is None


def test_all_that_is_ruled_out_is_one_mask():
    row = edits(allowed_token_ids=[2, 7, 8, 9, 40], min_tokens=1, bad_words=[[7], [8, 40]])
    ruled_out = [token_id for token_id in range(V) if token_id not in (2, 7, 8, 9, 40)]
    assert banned(row) == sorted([*ruled_out, 2, 7])
    assert banned(row, 9) == sorted([*ruled_out, 7])
    assert banned(row, 8) == sorted([*ruled_out, 7, 40])
    assert banned(row, 9) == sorted([*ruled_out, 7]), "masks of other tokens are left alone"


@pytest.mark.parametrize(
    ("params", "ids"),
    [
        ({"repetition_penalty": 1.1}, {5: 0, 6: 1, 8: 1}),
        ({"frequency_penalty": 0.5}, {6: 1, 8: 1}),
        ({"presence_penalty": -0.5, "repetition_penalty": 0.9}, {5: 0, 6: 1, 8: 1}),
    ],
)
def test_penalties_count_output_and_only_repetition_the_prompt(params, ids):
    row = edits(**params)
    found, counts = row.counts_at(np.array([6, 8], np.int32))
    assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == ids
    assert row.penalties == (
        params.get("repetition_penalty", 1.0),
        params.get("frequency_penalty", 0.0),
        params.get("presence_penalty", 0.0),
    )
