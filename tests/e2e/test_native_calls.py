"""A step is one native call, whatever is in it; and an engine that waits costs nothing."""

import time

import pytest

from pelton import LLM, SamplingParams
from tests.support.engines import trace_steps
from tests.support.native import count_calls, needs_native

pytestmark = needs_native

MIX = [
    SamplingParams(temperature=0, max_tokens=6),
    SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=9, logprobs=3),
    SamplingParams(temperature=1.0, top_k=40, min_p=0.01, repetition_penalty=1.1, seed=2, max_tokens=7),
    SamplingParams(temperature=0, logit_bias={300: 5.0}, prompt_logprobs=2, max_tokens=5),
    SamplingParams(temperature=0.5, bad_words=["water"], presence_penalty=0.4, seed=3, n=2, max_tokens=8),
    SamplingParams(temperature=0, max_tokens=0),
]


@pytest.fixture
def calls(monkeypatch):
    return count_calls(monkeypatch)


def test_one_call_per_step(monkeypatch, calls):
    llm = LLM(model="smollm2", long_prefill_token_threshold=11, max_num_seqs=70)
    trace = trace_steps(monkeypatch, llm)
    prompts = [f"Chapter {index}. " + "The water came down from the hills. " * (index % 7) for index in range(72)]
    llm.generate(prompts, [MIX[index % len(MIX)] for index in range(72)], use_tqdm=False)
    assert len(calls) == len(trace) > 10
    assert any(1 in step.num_scheduled_tokens and 11 in step.num_scheduled_tokens for step in trace)
    assert max(len(step.request_ids) for step in trace) > 64, "more rows than a tile of the head"


def test_eager_is_one_call_per_launch(monkeypatch, calls):
    llm = LLM(model="smollm2", enforce_eager=True)
    trace = trace_steps(monkeypatch, llm)
    llm.generate("Hello", SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    assert len(calls) > 200 * len(trace) > 0
    assert set(calls) == {1}


def test_an_idle_engine_uses_no_processor_time():
    llm = LLM(model="smollm2")
    llm.generate("Hello", SamplingParams(max_tokens=2), use_tqdm=False)
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(2.0)
    assert time.process_time() - before < 0.02
