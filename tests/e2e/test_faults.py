"""Faults that users of such engines have reported, provoked on purpose: block lifetime, cache keys, leaks."""

import gc
import random

import pytest

from pelton import SamplingParams
from pelton.engine.core_client import InprocClient
from pelton.engine.input_processor import InputProcessor
from pelton.engine.llm_engine import LLMEngine
from pelton.engine.output_processor import OutputProcessor
from pelton.loader import open_checkpoint
from pelton.sampling_params import RequestOutputKind
from pelton.tokenizer import load_tokenizer
from tests.support.engines import assert_same_bits, bits_of, core_of, generate, make_llm
from tests.support.fakes import VOCAB_SIZE, FakeEngine, expected_tokens, full_spec, sliding_spec
from tests.support.native import is_slow_machine


def test_prefix_cache_keys_with_a_hash_of_four_bits(monkeypatch):
    """Collisions all over the place: true prefixes are found, false ones never (fault 7)."""

    def four_bits(parent, tokens, extras):
        return hash((parent and parent.digest, tokens, extras)) & 15

    engine = FakeEngine(monkeypatch, hash_function=four_bits, num_gpu_blocks_override=200, max_num_seqs=4)
    rng = random.Random(5)
    prompts = [[rng.randrange(3) for _ in range(rng.choice([16, 17, 31, 32]))] for _ in range(150)]
    for n, prompt in enumerate(prompts):
        engine.add(f"a{n}", prompt, 3, salt="x" if n % 3 == 0 else None)
        engine.add(f"b{n}", prompt, 3, salt="x" if n % 3 == 0 else None)
    engine.run()
    engine.assert_as_expected()
    assert engine.core.kv.num_prefix_hits > 1000


def test_the_same_prompt_of_whole_blocks_twice(monkeypatch):
    """At least one token is computed, and salts keep tenants apart (fault 7)."""
    llm = make_llm(monkeypatch, model="smollm2", kv_cache_memory_bytes=1 << 28, max_model_len=512)
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=2)
    prompt = llm.get_tokenizer().encode("The wheel turns the generator, and the generator lights the village. " * 8)
    prompt = prompt[: len(prompt) // 16 * 16]
    cold = generate(llm, {"x": prompt}, params)["x"]
    hot = generate(llm, {"x": prompt}, params)["x"]
    assert (cold.num_cached_tokens, hot.num_cached_tokens) == (0, len(prompt) - 16)
    assert bits_of(hot) == bits_of(cold)
    salted = [{"prompt_token_ids": prompt, "cache_salt": salt} for salt in ("a", "b", "a")]
    cached = [llm.generate(p, params, use_tqdm=False)[0].num_cached_tokens for p in salted]
    assert cached == [0, 0, len(prompt) - 16]


@pytest.mark.parametrize("num_steps_in_flight", [1, 2])
def test_block_lifetime(monkeypatch, num_steps_in_flight):
    """A pool of 24 blocks, 3,000 requests that come, end, are aborted and preempted, freed blocks destroyed:
    every text equals the solo run (fault 8)."""
    rng = random.Random(8)
    engine = FakeEngine(
        monkeypatch,
        num_steps_in_flight=num_steps_in_flight,
        num_gpu_blocks_override=25,
        max_num_batched_tokens=32,
        max_num_seqs=12,
    )
    aborted = set()
    for number in range(3000):
        prompt = [rng.randrange(2)] * rng.randrange(12) + [rng.randrange(50) for _ in range(rng.randint(1, 8))]
        engine.add(str(number), prompt, rng.randint(1, 30))
        while len(engine.core.scheduler.requests) > rng.randrange(4, 16):
            engine.step()
        if rng.random() < 0.15:
            victim = str(rng.randrange(max(0, number - 12), number + 1))
            if victim not in engine.finish_reasons:
                aborted.add(victim)
            engine.core.abort_requests([victim])
    engine.run()
    assert 100 < len(aborted) < 600
    assert engine.core.scheduler.num_preemptions > 200
    engine.assert_as_expected([request_id for request_id in engine.prompts if request_id not in aborted])
    assert engine.core.kv.pool.num_free == engine.core.kv.pool.num_usable


def test_preemption_is_invisible(monkeypatch):
    """Eight long generations in a pool for three: same text, same counts, as with room for all (fault 9)."""
    outcomes = []
    for num_blocks in (60, 800):
        engine = FakeEngine(monkeypatch, specs=[full_spec(), sliding_spec(9)], num_gpu_blocks_override=num_blocks)
        for n in range(8):
            engine.add(str(n), [7] * 9 + [n] * 3, 44)
        engine.run()
        engine.assert_as_expected()
        outcomes.append((engine.tokens, engine.finish_reasons, engine.num_cached))
        preemptions = engine.core.scheduler.num_preemptions
        assert (4 <= preemptions <= 12) if num_blocks == 60 else preemptions == 0
    assert outcomes[0] == outcomes[1]


def test_sampled_output_survives_preemption(monkeypatch):
    """The random stream depends on seed and position, not on when a token is computed (fault 9)."""
    params = [
        SamplingParams(temperature=1.0, seed=n, max_tokens=60, ignore_eos=True, top_k=30, logprobs=0) for n in range(6)
    ]
    prompts = [f"Number {n} is" for n in range(6)]
    roomy = make_llm(monkeypatch, model="smollm2")
    expected = dict(zip(prompts, roomy.generate(prompts, params, use_tqdm=False), strict=True))
    assert core_of(roomy).scheduler.num_preemptions == 0
    tight = make_llm(monkeypatch, model="smollm2", num_gpu_blocks_override=14, max_model_len=96)
    outputs = dict(zip(prompts, tight.generate(prompts, params, use_tqdm=False), strict=True))
    assert core_of(tight).scheduler.num_preemptions >= 3
    assert_same_bits(outputs, expected)


def test_thousands_of_tiny_requests_leave_nothing_behind(monkeypatch):
    """Through the whole engine around a fake model; aborted and stopped ones among them (fault 16)."""
    fake = FakeEngine(monkeypatch, num_gpu_blocks_override=40)
    checkpoint = open_checkpoint("smollm2")
    tokenizer = load_tokenizer(checkpoint)
    inputs = InputProcessor(fake.args, tokenizer, [2], VOCAB_SIZE, fake.core.max_model_len)
    engine = LLMEngine(InprocClient(fake.core), inputs, OutputProcessor(tokenizer), tokenizer)

    def serve(num_requests: int) -> None:
        finished = 0
        for number in range(num_requests):
            prompt = [number % 5] * 5 + [number % 7]
            params = SamplingParams(
                temperature=0,
                max_tokens=1 + number % 3,
                stop=["e"] if number % 4 == 0 else None,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            request_id = engine.add_request(prompt, params)
            if number % 50 == 0:
                assert engine.abort_requests([request_id])[0].outputs[0].finish_reason == "abort"
                finished += 1
            while engine.num_unfinished_requests > 6:
                for output in engine.step():
                    finished += 1
                    if output.outputs[0].finish_reason == "length":
                        assert (
                            output.outputs[0].token_ids
                            == expected_tokens(output.prompt_token_ids, 3)[: len(output.outputs[0].token_ids)]
                        )
        while engine.num_unfinished_requests:
            finished += len(engine.step())
        assert finished == num_requests
        fake.worker.trace.clear()

    serve(4_000)
    gc.collect()
    before = len(gc.get_objects())
    serve(6_000 if is_slow_machine() else 20_000)
    gc.collect()
    grown = len(gc.get_objects()) - before
    assert grown < 500, f"{grown} more objects after thousands of requests"
    kv, scheduler = fake.core.kv, fake.core.scheduler
    assert kv.pool.num_free == kv.pool.num_usable
    assert not kv._requests
    assert not kv._cached_by_step
    assert not scheduler.requests
    assert not scheduler.running
    assert len(scheduler.waiting) == 0
    assert len(scheduler._dropped) <= scheduler.config.max_num_seqs
    assert sum(len(prefix_map) for prefix_map in kv.pool.prefix_maps) <= kv.pool.num_usable
    assert fake.worker.batch._row_of.keys() <= set(scheduler._dropped)
