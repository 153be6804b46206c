"""Which prompt tokens a step scores."""

import numpy as np
import pytest

from pelton import SamplingParams
from pelton.runner.prompt_scoring import PromptScoring
from tests.support.requests import new_request

WANTED = SamplingParams(prompt_logprobs=2)
TOKENS = np.arange(40, dtype=np.int32).reshape(2, 20) + 100


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 20])
def test_every_token_but_the_first_is_scored_once(size):
    """A prompt of 8 tokens in chunks, and two tokens of output."""
    scoring = PromptScoring()
    scoring.add(1, new_request("a", TOKENS[1, :8], WANTED))
    targets = []
    for start in range(0, 10, size):
        end = min(start + size, 10)
        inputs = scoring.inputs(["other", "a"], [5, start], np.array([0, 3, 3 + end - start]), TOKENS)
        if inputs is not None:
            assert inputs.counts == {"a": len(inputs.token_ids)}
            positions = inputs.logits_rows - 3 + start
            assert TOKENS[1, positions + 1].tolist() == inputs.token_ids.tolist()
            assert inputs.num_logprobs.tolist() == [2] * len(inputs.token_ids)
            assert {array.dtype for array in (inputs.logits_rows, inputs.token_ids, inputs.num_logprobs)} == {
                np.dtype(np.int32)
            }
            targets += inputs.token_ids.tolist()
    assert targets == TOKENS[1, 1:8].tolist()


def test_what_was_delivered_before_a_preemption_is_not_scored_again():
    scoring = PromptScoring()
    scoring.add(0, new_request("a", TOKENS[0, :8], WANTED, num_prompt_logprobs=5))
    assert scoring.inputs(["a"], [0], np.array([0, 4]), TOKENS) is None
    assert scoring.inputs(["a"], [4], np.array([0, 4]), TOKENS).token_ids.tolist() == [106, 107]
    scoring.add(0, new_request("b", TOKENS[0, :8], WANTED, num_prompt_logprobs=7))
    assert scoring.inputs(["b"], [0], np.array([0, 8]), TOKENS) is None


def test_two_requests_in_the_order_of_the_step():
    scoring = PromptScoring()
    scoring.add(0, new_request("a", TOKENS[0, :3], SamplingParams(prompt_logprobs=0)))
    scoring.add(1, new_request("b", TOKENS[1, :4], WANTED))
    inputs = scoring.inputs(["b", "a"], [0, 0], np.array([0, 4, 7]), TOKENS)
    assert inputs.counts == {"b": 3, "a": 2}
    assert inputs.logits_rows.tolist() == [0, 1, 2, 4, 5]
    assert inputs.token_ids.tolist() == [121, 122, 123, 101, 102]
    assert inputs.num_logprobs.tolist() == [2, 2, 2, 0, 0]


def test_a_dropped_request_is_forgotten():
    scoring = PromptScoring()
    scoring.add(0, new_request("a", TOKENS[0, :8], WANTED))
    scoring.drop("a")
    scoring.drop("unknown")
    assert scoring.inputs(["a"], [0], np.array([0, 8]), TOKENS) is None


@pytest.mark.parametrize(("prompt", "params"), [([1, 2, 3], SamplingParams()), ([1], WANTED)])
def test_nobody_asks(prompt, params):
    scoring = PromptScoring()
    scoring.add(0, new_request("a", prompt, params))
    assert scoring.inputs(["a"], [0], np.array([0, len(prompt)]), TOKENS) is None
