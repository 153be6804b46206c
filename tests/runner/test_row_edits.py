"""What a request's parameters do to its logits, token by token."""

import numpy as np
import pytest

from pelton import SamplingParams
from pelton.runner.row_edits import RowEdits
from tests.support.requests import core_request

V = 70


def edits(*, eos=(2,), bad_words=(), output=(), prompt=(5, 6, 5), **params) -> RowEdits:
    message = core_request("r", prompt, SamplingParams(**params), eos=eos, bad_words_token_ids=list(bad_words))
    assert RowEdits.concern(message)
    return RowEdits(message, list(output), V)


def biases(row: RowEdits, *output: int) -> dict[int, float]:
    ids, values = row.biases_at(np.array(output, np.int32))
    assert (ids.dtype, values.dtype) == (np.int32, np.float32)
    assert len(set(ids.tolist())) == len(ids), "ids are distinct"
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.0, "top_p": 0.5, "logprobs": 3, "stop": ["a"], "stop_token_ids": [3], "seed": 1}]
)
def test_most_requests_have_none(params):
    assert not RowEdits.concern(core_request("r", [1], SamplingParams(**params)))


def test_mask_has_a_bit_for_every_allowed_token():
    mask = edits(allowed_token_ids=[0, 31, 32, 69, 69]).mask
    assert mask.dtype == np.uint32
    assert mask.tolist() == [1 | 1 << 31, 1, 1 << 5]


def test_biases():
    row = edits(logit_bias={7: -100.0, 3: 0.5})
    assert biases(row) == biases(row, 1, 2, 3) == {7: -100.0, 3: 0.5}
    assert row.mask is row.counts is None


def test_ends_are_banned_before_min_tokens():
    row = edits(min_tokens=2, stop_token_ids=[9], eos=[2, 4], logit_bias={9: 5.0, 8: 1.0})
    banned = {2: -np.inf, 4: -np.inf, 9: -np.inf, 8: 1.0}
    assert biases(row) == biases(row, 1) == banned
    assert biases(row, 1, 1) == biases(row, 1, 1, 1) == {9: 5.0, 8: 1.0}


def test_an_ignored_end_is_no_end():
    assert biases(edits(min_tokens=2, stop_token_ids=[9], ignore_eos=True)) == {9: -np.inf}


def test_bad_words_ban_their_last_token_after_the_others():
    row = edits(bad_words=[[7], [3, 4], [3, 5], [1, 3, 6]], logit_bias={4: 2.0})
    assert biases(row) == {7: -np.inf, 4: 2.0}
    assert biases(row, 3) == {7: -np.inf, 4: -np.inf, 5: -np.inf}
    assert biases(row, 2, 1, 3) == {7: -np.inf, 4: -np.inf, 5: -np.inf, 6: -np.inf}
    assert biases(row, 1, 3, 2) == {7: -np.inf, 4: 2.0}


def test_bad_words_look_at_the_output_only():
    assert biases(edits(prompt=[1, 3], bad_words=[[3, 4]])) == {}


@pytest.mark.parametrize(
    ("params", "ids"),
    [
        ({"repetition_penalty": 1.1}, {5: 0, 6: 1, 8: 1}),
        ({"frequency_penalty": 0.5}, {6: 1, 8: 1}),
        ({"presence_penalty": -0.5, "repetition_penalty": 0.9}, {5: 0, 6: 1, 8: 1}),
    ],
)
def test_penalties_count_output_and_only_repetition_the_prompt(params, ids):
    row = edits(output=[6], **params)
    row.counts.add(8)
    assert dict(zip(row.counts.ids.tolist(), row.counts.counts.tolist(), strict=True)) == ids
    assert row.penalties == (
        params.get("repetition_penalty", 1.0),
        params.get("frequency_penalty", 0.0),
        params.get("presence_penalty", 0.0),
    )
