"""Random arrivals, lengths, priorities, aborts and failures; every invariant after every step."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pelton.core.request import RequestStatus
from tests.support.fakes import BREAKING, FakeEngine, full_spec, sliding_spec
from tests.support.native import is_slow_machine

MODELS = {
    "full": [full_spec()],
    "sliding": [sliding_spec(6)],
    "mixed": [full_spec(), sliding_spec(6), sliding_spec(6), sliding_spec(11)],
}


def check_invariants(engine: FakeEngine) -> None:
    core, scheduler = engine.core, engine.core.scheduler
    assert core.kv.integrity_problems() == []
    limits = scheduler.config
    assert len(scheduler.running) <= limits.max_num_seqs
    assert all(a.sort_key < b.sort_key for a, b in pairwise(scheduler.running))
    assert len(scheduler.running) + len(scheduler.waiting) + len(scheduler.blocked) == len(scheduler.requests)
    for request in scheduler.requests.values():
        assert request.num_tokens == len(request.token_ids) + request.num_pending_tokens
        assert 0 <= request.num_pending_tokens <= scheduler.num_steps_in_flight
        assert 0 <= request.num_computed_tokens <= request.num_tokens
        assert len(request.token_ids) < max(request.max_total_tokens, request.num_prompt_tokens + 1)
        if request.status is not RequestStatus.RUNNING:
            assert request.num_computed_tokens == request.num_pending_tokens == 0
    if not scheduler.num_steps_in_flight:
        running = {request.id for request in scheduler.running}
        assert engine.worker.batch._row_of.keys() <= running | set(scheduler._dropped)
    if engine.worker.trace:
        check_step(engine)


def check_step(engine: FakeEngine) -> None:
    step, limits = engine.worker.trace[-1], engine.core.scheduler.config
    assert 0 < step.total_num_scheduled_tokens <= limits.max_num_batched_tokens
    assert len(set(step.request_ids)) == len(step.request_ids) <= limits.max_num_seqs
    longest = limits.long_prefill_token_threshold or limits.max_num_batched_tokens
    assert all(0 < num <= longest for num in step.num_scheduled_tokens)


def check_idle(engine: FakeEngine) -> None:
    kv = engine.core.kv
    assert kv.pool.num_free == kv.pool.num_usable
    assert not kv._requests
    assert not kv._pending_release
    assert not kv._cached_by_step
    assert engine.core.num_integrity_failures == 0
    assert engine.worker.batch._row_of.keys() <= set(engine.core.scheduler._dropped)


ACTIONS = st.one_of(
    st.tuples(
        st.just("add"),
        st.integers(0, 3),  # which shared prefix
        st.integers(0, 20),  # how much of it
        st.integers(1, 12),  # own tokens
        st.integers(0, 24),  # max_tokens
        st.integers(-1, 1),  # priority
        st.sampled_from([None, None, None, "salt"]),
        st.sampled_from([None, None, 0]),  # prompt_logprobs
        st.sampled_from([False] * 7 + [True]),  # whether the model breaks on it
    ),
    st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.just("abort"), st.integers(0, 50)),
    st.tuples(st.just("fail"), st.integers(1, 3)),
    st.tuples(st.just("reset")),
)


def run_actions(engine: FakeEngine, actions: Sequence[tuple]) -> None:
    """Play the actions, then run to the end; everything that was not aborted or failed is as expected."""
    prefixes = [[100 * n + i for i in range(20)] for n in range(4)]
    aborted: set[str] = set()
    breaking: set[str] = set()
    for action in actions:
        if action[0] == "add":
            _, prefix, shared, own, max_tokens, priority, salt, prompt_logprobs, breaks = action
            request_id = str(len(engine.prompts))
            prompt = prefixes[prefix][:shared] + [len(engine.prompts) % 7] * own
            if breaks:
                breaking.add(request_id)
                prompt.append(BREAKING)
            engine.add(request_id, prompt, max_tokens, priority, salt, prompt_logprobs=prompt_logprobs)
        elif action[0] == "step":
            for _ in range(action[1]):
                engine.step()
                check_invariants(engine)
        elif action[0] == "abort" and engine.prompts:
            request_id = str(action[1] % len(engine.prompts))
            if request_id not in engine.finish_reasons:
                aborted.add(request_id)
            engine.core.abort_requests([request_id, request_id, "never seen"])
        elif action[0] == "fail":
            engine.worker.failing_steps.add(engine.core.scheduler._last_step_id + action[1])
        elif action[0] == "reset":
            engine.core.reset_prefix_cache()
        check_invariants(engine)
    steps = 0
    while engine.core.has_work:
        engine.step()
        check_invariants(engine)
        steps += 1
        assert steps < 5000, "no end in sight"
    check_idle(engine)
    failed = {request_id for request_id, reason in engine.finish_reasons.items() if reason == "error"}
    assert failed <= breaking or engine.worker.failing_steps
    assert breaking <= failed | aborted
    for request_id in engine.prompts:
        expected, scored = engine.expected(request_id), engine.expected_prompt_logprobs(request_id)
        tokens, found = engine.tokens[request_id], engine.prompt_logprobs.get(request_id, [])
        if request_id in breaking:
            assert tokens == []
        elif request_id in aborted | failed:
            assert tokens == expected[: len(tokens)]
            assert found == scored[: len(found)]
        else:
            assert tokens == expected
            assert found == scored
    assert engine.finish_reasons.keys() | aborted == engine.prompts.keys()


@pytest.mark.parametrize("num_steps_in_flight", [1, 2, 3])
@pytest.mark.parametrize("model", MODELS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    actions=st.lists(ACTIONS, min_size=10, max_size=60),
    num_blocks=st.integers(30, 60),
    budget=st.integers(1, 40),
    threshold=st.sampled_from([0, 1, 3, 7]),
    max_num_seqs=st.integers(1, 8),
    policy=st.sampled_from(["fcfs", "priority"]),
    caching=st.booleans(),
    hash_bits=st.sampled_from([2, 64]),
)
def test_every_request_gets_its_tokens_whatever_happens(
    monkeypatch,
    model,
    num_steps_in_flight,
    actions,
    num_blocks,
    budget,
    threshold,
    max_num_seqs,
    policy,
    caching,
    hash_bits,
):
    engine = FakeEngine(
        monkeypatch,
        specs=MODELS[model],
        max_model_len=48,
        num_steps_in_flight=num_steps_in_flight,
        hash_function=lambda parent, tokens, extras: hash((parent and parent.digest, tokens, extras))
        & ((1 << hash_bits) - 1),
        num_gpu_blocks_override=num_blocks if model == "full" else 2 * num_blocks,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
        max_num_seqs=max_num_seqs,
        scheduling_policy=policy,
        enable_prefix_caching=caching,
        eos=[3, 5],
    )  # fmt: skip
    run_actions(engine, actions)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("num_steps_in_flight", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_thousands_of_requests_in_a_small_pool(monkeypatch, model, num_steps_in_flight, policy):
    """Adds, aborts, ends, failures and preemptions by the thousand, in a pool for a few requests."""
    rng = random.Random(11)
    engine = FakeEngine(
        monkeypatch,
        specs=MODELS[model],
        max_model_len=48,
        num_steps_in_flight=num_steps_in_flight,
        num_gpu_blocks_override={"full": 24, "sliding": 14, "mixed": 48}[model],
        long_prefill_token_threshold=5,
        scheduling_policy=policy,
        max_num_batched_tokens=24,
        max_num_seqs=10,
        eos=[3, 5],
    )
    aborted = set()
    for number in range(600 if is_slow_machine() else 1500):
        shared = rng.randrange(20)
        prompt = [7] * shared + [rng.randrange(9) for _ in range(rng.randint(1, 9))]
        engine.add(str(number), prompt, rng.randint(1, 24), priority=rng.randrange(3))
        for _ in range(rng.randrange(8)):
            engine.step()
            check_invariants(engine)
        if number % 211 == 0:
            engine.worker.failing_steps.add(engine.core.scheduler._last_step_id + 2)
        if rng.random() < 0.1:
            victim = str(rng.randrange(number + 1))
            if victim not in engine.finish_reasons:
                aborted.add(victim)
            engine.core.abort_requests([victim])
    engine.run()
    check_idle(engine)
    if model != "sliding":  # there, what a request holds hardly grows
        assert engine.core.scheduler.num_preemptions > 20
    assert engine.core.kv.num_prefix_hits > 1000
    failed = {request_id for request_id, reason in engine.finish_reasons.items() if reason == "error"}
    assert 0 < len(failed) < 150
    engine.assert_as_expected([i for i in engine.prompts if i not in aborted | failed])
