"""Bad requests get one clear sentence, and healthy streams beside them go on as if alone (fault 17)."""

import math

import numpy as np
import pytest

from pelton import SamplingParams
from pelton.sampling_params import RequestOutputKind
from tests.support.sampling_engine import MODEL_VOCAB_SIZE, SamplingEngine

GOOD = [1, 2, 3]

BAD = {
    "empty text": ("", {}),
    "no tokens": ([], {}),
    "nested": ([[]], {}),
    "none": (None, {}),
    "bytes": (b"abc", {}),
    "number": (5, {}),
    "empty dict": ({}, {}),
    "unknown key": ({"prompt": "a", "image": "b"}, {}),
    "negative id": ([-1], {}),
    "id beyond the vocabulary": ([MODEL_VOCAB_SIZE], {}),
    "huge id": ([2**63], {}),
    "float id": ([1.0], {}),
    "bool id": ([True], {}),
    "array": (np.array([1, 2]), {}),
    "lone surrogate": ("a\ud800b", {}),
    "too long": ([1] * 160, {}),
    "a megabyte of text": ("word " * 200_000, {}),
    "NaN temperature": (GOOD, {"temperature": math.nan}),
    "negative temperature": (GOOD, {"temperature": -1}),
    "huge top_k": (GOOD, {"top_k": 2**70}),
    "top_p of text": (GOOD, {"top_p": "0.9"}),
    "n of a billion": (GOOD, {"n": 10**9}),
    "greedy choices": (GOOD, {"n": 2, "temperature": 0}),
    "stop of a megabyte": (GOOD, {"stop": "x" * 2**20}),
    "many stops": (GOOD, {"stop": ["x"] * 100_000}),
    "stop of nothing": (GOOD, {"stop": ""}),
    "stop token beyond": (GOOD, {"stop_token_ids": [MODEL_VOCAB_SIZE]}),
    "bias beyond": (GOOD, {"logit_bias": {MODEL_VOCAB_SIZE: 1.0}}),
    "bias of NaN": (GOOD, {"logit_bias": {5: math.nan}}),
    "bias too strong": (GOOD, {"logit_bias": {5: 1e9}}),
    "allowed beyond": (GOOD, {"allowed_token_ids": [5, 2**40]}),
    "nothing allowed": (GOOD, {"allowed_token_ids": []}),
    "only the end allowed, but not yet": (GOOD, {"allowed_token_ids": [2], "min_tokens": 3}),
    "too many logprobs": (GOOD, {"logprobs": 21}),
    "all logprobs": (GOOD, {"logprobs": -1}),
    "too many prompt logprobs": (GOOD, {"prompt_logprobs": 21}),
    "penalty too high": (GOOD, {"presence_penalty": 2.5}),
    "repetition of nothing": (GOOD, {"repetition_penalty": 0}),
    "min above max": (GOOD, {"min_tokens": 5, "max_tokens": 4}),
    "negative max_tokens": (GOOD, {"max_tokens": -1}),
    "truncated to more than there can be": (GOOD, {"truncate_prompt_tokens": 10**6}),
    "bad words that are none": (GOOD, {"bad_words": [5]}),
    "too many bad words": (GOOD, {"bad_words": ["a"] * 10**5}),
    "extra arguments for nobody": (GOOD, {"extra_args": {"x": 1}}),
    "stop without text": (GOOD, {"stop": "a", "detokenize": False}),
}
"""Prompt and parameters."""


def healthy() -> dict:
    return {
        f"stream {number}": ([7, number], SamplingParams(seed=number, max_tokens=100, ignore_eos=True, top_p=0.9))
        for number in range(8)
    }


def test_bad_requests_beside_healthy_streams(monkeypatch):
    alone = SamplingEngine(monkeypatch).run(healthy())
    engine = SamplingEngine(monkeypatch).engine
    texts = dict.fromkeys(alone, "")
    for name, (prompt, params) in healthy().items():
        params.output_kind = RequestOutputKind.DELTA
        engine.add_request(prompt, params, request_id=name)
    bad = iter(BAD.items())
    refused = 0
    while engine.num_unfinished_requests:
        for output in engine.step():
            texts[output.request_id] += output.outputs[0].text
        if (request := next(bad, None)) is not None:
            name, (prompt, fields) = request
            with pytest.raises(ValueError, match=r"\S") as caught:
                engine.add_request(prompt, SamplingParams(**fields))
            message = str(caught.value)
            assert len(message) < 400, name
            assert "\n" not in message, name
            message.encode()
            assert engine.num_unfinished_requests == 8, name
            refused += 1
    assert refused == len(BAD), "the streams lasted for all of them"
    assert texts == {name: output.outputs[0].text for name, output in alone.items()}


@pytest.mark.parametrize("name", BAD)
def test_the_engine_stays_usable(monkeypatch, name):
    engine = SamplingEngine(monkeypatch)
    prompt, fields = BAD[name]
    with pytest.raises(ValueError, match=r"\S"):
        engine.engine.add_request(prompt, SamplingParams(**fields))
    assert not engine.core.has_work
    params = SamplingParams(temperature=0, max_tokens=3)
    assert len(engine.run({"good": (GOOD, params)})["good"].outputs[0].token_ids) == 3
