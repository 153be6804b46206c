"""One answer, bit by bit: the real model's tokens and log probabilities do not depend on what else runs, nor on how.

Every request runs alone first; then all together, in another order, in chunks of several sizes, on a hot cache, after
preemption, launch by launch, with other numbers of threads and other block sizes. Blocks come in shuffled order, and
hold NaN from the moment when nobody may rely on them. Step traces show that the batches really differed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from msgspec import structs

from pelton import LLM, SamplingParams
from pelton.ops.cpu import LEVELS
from tests.support.engines import bits_of, core_of, make_llm, trace_steps
from tests.support.native import is_slow_machine, needs_native, usable_levels
from tests.support.prompts import prompts

pytestmark = needs_native

Request = tuple[list[int], SamplingParams]

PARAMETERS = [
    {},
    {"logprobs": 5},
    {"logprobs": 0, "prompt_logprobs": 3, "max_tokens": 1},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": -0.3},
    {"logit_bias": {284: 3.0, 260: -100.0}, "logprobs": 2},
    {"allowed_token_ids": list(range(100, 9000)), "logprobs": 1},
    {"temperature": 0.8, "logprobs": 3},
    {"temperature": 1.3, "top_p": 0.9, "logprobs": 1},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.0, "min_p": 0.05, "logprobs": 2, "prompt_logprobs": 0},
    {"temperature": 0.9, "top_p": 0.8, "top_k": 100, "repetition_penalty": 0.9, "min_tokens": 4},
    {"temperature": 2.0, "bad_words": ["the", "and"], "logprobs": 4},
]
"""Greedy where there is no temperature."""


def some_requests(tokenizer, num_requests: int) -> list[Request]:
    """Prompts of one to some hundred tokens, some with equal beginnings, with all kinds of parameters."""
    rng = random.Random(5)
    texts = sorted((ids for ids in prompts(tokenizer).values() if len(ids) <= 130), key=len)
    long = next(ids for ids in prompts(tokenizer).values() if len(ids) >= 640)
    requests = []
    for index in range(num_requests):
        ids = list(texts[index % len(texts)])
        if index == 3:
            ids = long[:600]
        elif index % 5 == 4:  # a beginning that others have too
            ids = long[: rng.choice([16, 40, 65])] + [rng.randrange(1000, 40_000) for _ in range(rng.randint(1, 20))]
        fields = {"temperature": 0.0, "max_tokens": rng.choice([4, 6, 9, 14])} | PARAMETERS[index % len(PARAMETERS)]
        requests.append((ids, SamplingParams(seed=index, **fields)))
    return requests


def run(llm: LLM, requests: Sequence[Request]) -> list[tuple]:
    prompt_ids, params = zip(*requests, strict=True)
    outputs = llm.generate(list(prompt_ids), list(params), use_tqdm=False)
    assert {completion.finish_reason for output in outputs for completion in output.outputs} <= {"length", "stop"}
    return [bits_of(output)[0] for output in outputs]


@dataclass
class Alone:
    requests: list[Request]
    outputs: list[tuple]

    def assert_same(self, outputs: Sequence[tuple]) -> None:
        differing = [index for index, (a, b) in enumerate(zip(outputs, self.outputs, strict=True)) if a != b]
        assert not differing, f"requests {differing}; the first has {self.requests[differing[0]][1]}"


NUM_REQUESTS = 32 if is_slow_machine() else 64


FORMATS = {
    "bfloat16": {"dtype": "bfloat16"},
    "float32": {"dtype": "float32"},
    "int8": {"dtype": "auto", "quantization": "int8"},
    "as-stored": {"dtype": "auto"},  # in 4 and 8 bits
}


def kinds():
    """Level and format; all but the first, of the best level, are for slow runs."""
    for level in reversed(LEVELS):
        is_usable = level in usable_levels()
        marks = [] if is_usable else [pytest.mark.skip(reason=f"{level} is not installed or does not run here")]
        for name in FORMATS:
            slow = [] if is_first(level, name) else [pytest.mark.slow]
            yield pytest.param((level, name), id=f"{level}-{name}", marks=[*marks, *slow])


def is_first(level: str, name: str) -> bool:
    return usable_levels()[-1:] == [level] and name == "bfloat16"


@pytest.fixture(scope="module", params=kinds())
def kind(request):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PELTON_CPU_ISA", request.param[0])
        yield request.param


@pytest.fixture(scope="module")
def alone(kind):
    """Every request by itself, one after the other: nothing shared, nothing cut, nothing cached."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        llm = make_llm(monkeypatch, model="smollm2", **FORMATS[kind[1]], enable_prefix_caching=False)
        trace = trace_steps(monkeypatch, llm)
        requests = some_requests(llm.get_tokenizer(), NUM_REQUESTS)
        outputs = [run(llm, [request])[0] for request in requests]
        assert {len(step.request_ids) for step in trace} == {1}
        llm.llm_engine.shutdown()
    return Alone(requests, outputs)


def test_the_outputs_are_worth_comparing(alone):
    """They have many tokens, and logprobs of many values."""
    assert sum(len(output[0]) for output in alone.outputs) > 5 * len(alone.outputs)
    values = {bits for output in alone.outputs for position in output[1] or [] for _, bits, _ in position}
    assert len(values) > 3 * len(alone.outputs)


@pytest.fixture
def make(monkeypatch, kind):
    """-> an LLM of this kind, and its steps from now on."""
    made = []

    def make(**options):
        llm = make_llm(monkeypatch, model="smollm2", **FORMATS[kind[1]], **options)
        made.append(llm)
        return llm, trace_steps(monkeypatch, llm)

    yield make
    for llm in made:
        llm.llm_engine.shutdown()


def test_together(make, alone):
    llm, trace = make()
    alone.assert_same(run(llm, alone.requests))
    assert max(len(step.request_ids) for step in trace) == len(alone.requests)


def test_shuffled_and_a_few_at_a_time(make, alone):
    llm, trace = make(max_num_seqs=7, max_num_batched_tokens=150)
    order = list(range(len(alone.requests)))
    random.Random(1).shuffle(order)
    outputs = run(llm, [alone.requests[index] for index in order])
    alone.assert_same([outputs[order.index(index)] for index in range(len(order))])
    assert max(len(step.request_ids) for step in trace) == 7
    assert max(step.total_num_scheduled_tokens for step in trace) == 150


@pytest.mark.parametrize("chunk", [1, 17, 33, 512])
def test_chunks(make, alone, chunk):
    llm, trace = make(long_prefill_token_threshold=chunk, enable_prefix_caching=False)
    alone.assert_same(run(llm, alone.requests))
    assert max(max(step.num_scheduled_tokens) for step in trace) == chunk
    assert any(0 in step.num_logits for step in trace)


def test_hot_cache(make, alone):
    llm, trace = make()
    run(llm, alone.requests)
    before = sum(step.total_num_scheduled_tokens for step in trace)
    trace.clear()
    alone.assert_same(run(llm, alone.requests))
    assert sum(step.total_num_scheduled_tokens for step in trace) < 0.7 * before


def test_preempted(make, alone):
    """Long outputs, and a pool for three of eight requests: those that lose their blocks start over."""
    requests = []
    for prompt_ids, params in alone.requests[:12]:
        if len(prompt_ids) <= 40 and params.allowed_token_ids is None:
            requests.append((prompt_ids, structs.replace(params, max_tokens=50, ignore_eos=True, prompt_logprobs=None)))
    one_by_one, trace = make(max_num_seqs=1, enable_prefix_caching=False)
    expected = run(one_by_one, requests)
    assert {len(step.request_ids) for step in trace} == {1}
    llm, trace = make(num_gpu_blocks_override=12, max_model_len=160)
    Alone(requests, expected).assert_same(run(llm, requests))
    resumed = [new for step in trace for new in step.new_requests if new.output_token_ids]
    assert len(resumed) == core_of(llm).scheduler.num_preemptions >= 3


@pytest.mark.parametrize(
    "options", [{"enforce_eager": True}, {"num_threads": 1}, {"num_threads": 2}, {"num_threads": 3}], ids=str
)
def test_eager_and_other_numbers_of_threads(make, alone, options):
    llm, _ = make(**options)
    alone.assert_same(run(llm, alone.requests))
    backend = core_of(llm)._executor._worker._backend
    assert f"{options.get('num_threads', '')} thread" in backend.name


@pytest.mark.parametrize("block_size", [4, 32])
def test_other_block_sizes(make, alone, block_size):
    llm, _ = make(block_size=block_size)
    alone.assert_same(run(llm, alone.requests))


def every_kind():
    """Level and format; integers on the portable level take long, and so does all of it on slow machines."""
    for level in LEVELS:
        for name in FORMATS:
            is_slow = level == "portable" and (name in ("int8", "as-stored") or is_slow_machine())
            yield pytest.param(level, name, id=f"{level}-{name}", marks=[pytest.mark.slow] if is_slow else [])


@pytest.mark.parametrize(("level", "name"), list(every_kind()))
def test_a_few_requests_on_every_level(monkeypatch, level, name):
    """Alone, together, and in chunks: what slow runs do with all requests and in all ways."""
    if level not in usable_levels():
        pytest.skip(f"{level} is not installed or does not run here")
    monkeypatch.setenv("PELTON_CPU_ISA", level)
    outputs = []
    for options in ({"max_num_seqs": 1}, {}, {"long_prefill_token_threshold": 17}):
        llm = make_llm(monkeypatch, model="smollm2", **FORMATS[name], enable_prefix_caching=False, **options)
        requests = some_requests(llm.get_tokenizer(), 8)
        outputs.append(run(llm, requests))
        assert f"cpu {level}" in core_of(llm)._executor._worker._backend.name
        llm.llm_engine.shutdown()
    Alone(requests, outputs[0]).assert_same(outputs[1])
    Alone(requests, outputs[0]).assert_same(outputs[2])


def test_kinds_differ(alone, kind):
    """The comparison would notice other arithmetic: a number format gives other bits."""
    if kind[1] != "float32":
        return
    with pytest.MonkeyPatch.context() as monkeypatch:
        llm = make_llm(monkeypatch, model="smollm2", dtype="bfloat16")
        outputs = run(llm, alone.requests)
        llm.llm_engine.shutdown()
    num_asked = sum(1 for output in alone.outputs if output[1])
    assert sum(a[1] != b[1] for a, b in zip(outputs, alone.outputs, strict=True)) == num_asked
