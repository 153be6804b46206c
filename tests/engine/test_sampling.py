"""Sampling in a whole engine whose logits are exact: what one request does never reaches another."""

import numpy as np
import pytest

from pelton import SamplingParams
from pelton.sampling.logits_processor import LogitsProcessor
from tests.support.sampling_engine import MODEL_VOCAB_SIZE, SamplingEngine

PROMPT = [5, 6, 7]


class Boost(LogitsProcessor):
    """Adds to the logits of even tokens, more so the longer the output is."""

    arguments = frozenset({"boost"})

    @staticmethod
    def read(params):
        return (params.extra_args or {}).get("boost", [0.0])[0]

    @classmethod
    def validate_params(cls, params):
        cls.read(params)

    def new_request(self, params):
        boost = self.read(params)
        if not boost:
            return None

        def change(prompt_ids, output_ids, logits):
            logits[::2] += boost + 0.1 * len(output_ids)

        return change


class TakingBoost(Boost):
    """Takes its argument out of the parameters, and spoils the others."""

    @staticmethod
    def read(params):
        boost = (params.extra_args or {}).pop("boost", [0.0]).pop()
        params.top_k = params.stop_token_ids = None
        return boost


class Overwritten(LogitsProcessor):
    """The logits of the prompt's tokens become 0, and those of all others negative."""

    def new_request(self, params):
        def change(prompt_ids, output_ids, logits):
            logits[:] = -1.0
            logits[prompt_ids] = 0.0

        return change


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("no message")


class Failing(LogitsProcessor):
    """Fails in the place that `extra_args["fail"]` names, with an exception that has no message."""

    arguments = frozenset({"fail"})

    def new_request(self, params):
        place = (params.extra_args or {}).get("fail")
        if place is None:
            return None
        if place == "new_request":
            raise SilentError

        def change(prompt_ids, output_ids, logits):
            if len(output_ids) == 2:
                raise SilentError

        return change


def test_a_processor_may_change_the_parameters_it_is_given(monkeypatch):
    """For several choices, and after preemptions, it finds them whole."""
    params = SamplingParams(n=3, seed=4, max_tokens=30, ignore_eos=True, top_k=20, extra_args={"boost": [1.5]})
    requests = {f"r{i}": ([*PROMPT, *range(10, 10 + 3 * i)], params) for i in range(6)}
    expected = SamplingEngine(monkeypatch, processors=[Boost]).run(requests)
    roomy = SamplingEngine(monkeypatch, processors=[TakingBoost]).run(requests)
    engine = SamplingEngine(monkeypatch, processors=[TakingBoost], num_gpu_blocks_override=60)
    crowded = engine.run(requests)
    assert engine.core.scheduler.num_preemptions >= 5
    for name, output in expected.items():
        assert roomy[name].outputs == output.outputs
        assert crowded[name].outputs == output.outputs
    without = {
        name: (prompt, SamplingParams(n=3, seed=4, max_tokens=30, ignore_eos=True, top_k=20))
        for name, (prompt, _) in requests.items()
    }
    plain = SamplingEngine(monkeypatch, processors=[TakingBoost]).run(without)
    assert all(plain[name].outputs != output.outputs for name, output in expected.items()), "the boost changes them"


@pytest.mark.parametrize(("place", "num_tokens"), [("new_request", 0), ("change", 2)])
def test_an_exception_without_a_message_ends_its_own_request(monkeypatch, place, num_tokens):
    params = {"temperature": 0.0, "max_tokens": 5, "ignore_eos": True}
    engine = SamplingEngine(monkeypatch, processors=[Failing])
    outputs = engine.run(
        {
            "failing": (PROMPT, SamplingParams(**params, extra_args={"fail": place})),
            "other": ([*PROMPT, 8], SamplingParams(**params)),
        }
    )
    failing, other = outputs["failing"].outputs[0], outputs["other"].outputs[0]
    assert (failing.finish_reason, failing.stop_reason) == ("error", "the logits processor Failing failed: SilentError")
    assert len(failing.token_ids) == num_tokens
    assert (other.finish_reason, len(other.token_ids)) == ("length", 5)


@pytest.mark.parametrize("penalty", [1e-300, 1e-46, 1e-40, 1e38, 4e38, 1e300])
def test_extreme_repetition_penalties(monkeypatch, penalty):
    """A logit of 0 stays 0, the others stay finite; warnings are errors here."""
    engine = SamplingEngine(monkeypatch, processors=[Overwritten], logprobs_mode="processed_logits", max_logprobs=-1)
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, repetition_penalty=penalty, logprobs=-1)
    (output,) = engine.run({"a": (PROMPT, params)})["a"].outputs
    assert (output.finish_reason, output.stop_reason) == ("length", None)
    assert output.token_ids == [PROMPT[0]] * 3
    for entries in output.logprobs:
        logits = np.array([entries[token_id].logprob for token_id in range(MODEL_VOCAB_SIZE)])
        assert np.flatnonzero(logits == 0.0).tolist() == PROMPT
        assert np.isfinite(logits).all()
