"""The same bits from the real model, whatever else runs: chunks up to long prompts, cache, preemption, order.

Blocks come in shuffled order and hold NaN when nobody may rely on them. `test_bits.py` has all kinds of parameters,
levels and modes; here are the steps in detail.
"""

import random

import pytest

from pelton import LLM, SamplingParams
from tests.support.engines import (
    assert_same_bits,
    bits_of,
    block_ids_of,
    core_of,
    generate,
    make_llm,
    trace_steps,
)
from tests.support.native import is_slow_machine, needs_native
from tests.support.prompts import prompts

pytestmark = needs_native

PARAMS = SamplingParams(temperature=0, max_tokens=24, logprobs=2, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, top_k=50, seed=11, max_tokens=24, logprobs=2, ignore_eos=True)
LONGEST = {1: 33, 7: 128, 16: 257, 64: 640}
"""Longest prompt per chunk size in the quick tests: every chunk is a step."""
SLOW = [pytest.mark.slow] if is_slow_machine() else []


@pytest.fixture(scope="module")
def alone():
    return SoloOutputs()


class SoloOutputs(dict):
    """The output of every prompt on its own, nothing shared, nothing chunked; computed when first asked for."""

    def __init__(self) -> None:
        self._llm = LLM(model="smollm2", dtype="float32", enable_prefix_caching=False)
        self._prompts = prompts(self._llm.get_tokenizer())

    def __missing__(self, name):
        self[name] = generate(self._llm, {name: self._prompts[name]}, PARAMS)[name]
        return self[name]

    def prompts_up_to(self, longest: int) -> dict[str, list[int]]:
        return {name: ids for name, ids in self._prompts.items() if len(ids) <= longest}


def generate_and_compare(llm, ids, alone):
    outputs = generate(llm, ids, PARAMS)
    assert_same_bits(outputs, alone)
    assert core_of(llm).scheduler.num_preemptions == 0
    return outputs


@pytest.mark.parametrize("longest", [None, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("chunk", [*(pytest.param(chunk, marks=SLOW) for chunk in (1, 7)), 16, 64])
def test_chunk_sizes(monkeypatch, alone, chunk, longest):
    llm = make_llm(monkeypatch, model="smollm2", long_prefill_token_threshold=chunk, enable_prefix_caching=False)
    trace = trace_steps(monkeypatch, llm)
    ids = alone.prompts_up_to(longest or LONGEST[chunk])
    generate_and_compare(llm, ids, alone)
    chunks = [num for step in trace for num in step.num_scheduled_tokens]
    assert max(chunks) == chunk
    num_chunked = sum(1 for step in trace for num in step.num_logits if num == 0)
    assert num_chunked == sum((len(prompt) - 1) // chunk for prompt in ids.values())
    blocks = block_ids_of(trace, max(zip(map(len, ids.values()), trace[0].request_ids, strict=True))[1])
    assert len(blocks) >= 4
    assert blocks != sorted(blocks), "blocks must not come in order"


def test_chunks_cut_at_the_token_budget(monkeypatch, alone):
    llm = make_llm(monkeypatch, model="smollm2", max_num_batched_tokens=100)
    trace = trace_steps(monkeypatch, llm)
    generate_and_compare(llm, alone.prompts_up_to(640), alone)
    assert max(step.total_num_scheduled_tokens for step in trace) == 100
    mixed = [step for step in trace if 1 in step.num_scheduled_tokens and max(step.num_scheduled_tokens) > 1]
    assert len(mixed) > 10, "steps must mix decodes and chunks of prompts"


def test_prefix_cache_off_cold_and_hot(monkeypatch, alone):
    ids = alone.prompts_up_to(257)
    off = make_llm(monkeypatch, model="smollm2", enable_prefix_caching=False)
    outputs = generate_and_compare(off, ids, alone)
    assert all(output.num_cached_tokens == 0 for output in outputs.values())

    on = make_llm(monkeypatch, model="smollm2", prefix_caching_hash_algo="builtin")
    generate_and_compare(on, ids, alone)
    trace = trace_steps(monkeypatch, on)
    hot = generate_and_compare(on, ids, alone)
    for name, output in hot.items():
        assert output.num_cached_tokens == (len(ids[name]) - 1) // 16 * 16, name
    num_computed = sum(step.num_scheduled_tokens[i] for step in trace for i in range(len(step.request_ids)))
    assert num_computed == sum((len(p) - 1) % 16 + 1 + PARAMS.max_tokens - 1 for p in ids.values())


def test_a_hit_within_one_step(monkeypatch, alone):
    """Two equal prompts in one step: the second uses blocks that the first fills in the same step."""
    llm = make_llm(monkeypatch, model="smollm2")
    trace = trace_steps(monkeypatch, llm)
    prompt = alone["257 tokens"].prompt_token_ids
    first, second = llm.generate([prompt, prompt], PARAMS, use_tqdm=False)
    assert trace[0].num_scheduled_tokens == [257, 1]
    assert trace[0].num_computed_tokens == [0, 256]
    assert bits_of(first) == bits_of(second) == bits_of(alone["257 tokens"])


def test_preemption(monkeypatch, alone):
    """A pool for three of eight long generations: preempted requests give the same tokens, without ping-pong."""
    params = SamplingParams(temperature=0, max_tokens=100, logprobs=2, ignore_eos=True)
    ids = dict(list(alone.prompts_up_to(40).items())[:8])
    llm = make_llm(monkeypatch, model="smollm2")
    roomy = generate(llm, ids, params)
    assert core_of(llm).scheduler.num_preemptions == 0
    llm = make_llm(monkeypatch, model="smollm2", num_gpu_blocks_override=26, max_model_len=160)
    trace = trace_steps(monkeypatch, llm)
    outputs = generate(llm, ids, params)
    assert_same_bits(outputs, roomy)
    for name in ids:
        assert outputs[name].num_cached_tokens == roomy[name].num_cached_tokens
    scheduler = core_of(llm).scheduler
    assert 3 <= scheduler.num_preemptions <= 16
    resumed = [new for step in trace for new in step.new_requests if new.output_token_ids]
    assert len(resumed) == scheduler.num_preemptions


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_submission_order(monkeypatch, alone, seed):
    ids = alone.prompts_up_to(257)
    names = list(ids)
    random.Random(seed).shuffle(names)
    llm = make_llm(monkeypatch, model="smollm2", max_num_seqs=7, max_num_batched_tokens=200)
    generate_and_compare(llm, {name: ids[name] for name in names}, alone)


def test_sampled_tokens(monkeypatch, alone):
    """Seeded sampling: alone, in a crowd of other requests, and chunked."""
    ids = alone.prompts_up_to(130)
    llm = make_llm(monkeypatch, model="smollm2", long_prefill_token_threshold=9)
    together = generate(llm, ids, SAMPLED)
    by_itself = {name: generate(llm, {name: ids[name]}, SAMPLED)[name] for name in list(ids)[:6]}
    assert_same_bits(by_itself, together)
    assert core_of(llm).scheduler.num_preemptions == 0
    num_unlike_greedy = sum(together[name].outputs[0].token_ids != alone[name].outputs[0].token_ids for name in ids)
    assert num_unlike_greedy > len(ids) * 3 // 4
