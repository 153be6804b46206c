"""What the scheduler decides, seen in its step messages."""

import pytest

from pelton.core.request import RequestStatus
from tests.support.fakes import BREAKING, FakeEngine, expected_tokens, full_spec, sliding_spec


def schedule_of(engine: FakeEngine) -> list[dict[str, int]]:
    """Per step: request id -> scheduled tokens, in scheduling order."""
    return [dict(zip(s.request_ids, s.num_scheduled_tokens, strict=True)) for s in engine.worker.trace]


def test_prompts_and_decodes_share_a_step(monkeypatch):
    engine = FakeEngine(monkeypatch, max_num_batched_tokens=10)
    engine.add("a", range(6), 4)
    engine.step()
    engine.add("b", range(50, 62), 2)
    engine.run()
    engine.assert_as_expected()
    assert schedule_of(engine) == [{"a": 6}, {"a": 1, "b": 9}, {"a": 1, "b": 3}, {"a": 1, "b": 1}]


def test_first_come_first_served(monkeypatch):
    engine = FakeEngine(monkeypatch, max_num_seqs=2)
    for name in "abcd":
        engine.add(name, [ord(name)] * 3, 2, priority=-ord(name))
    engine.run()
    assert [list(step) for step in schedule_of(engine)] == [["a", "b"], ["a", "b"], ["c", "d"], ["c", "d"]]


def test_priority_order_then_arrival(monkeypatch):
    engine = FakeEngine(monkeypatch, max_num_seqs=2, scheduling_policy="priority")
    for name, priority in (("a", 5), ("b", 0), ("c", 5), ("d", -1)):
        engine.add(name, [ord(name)] * 3, 2, priority=priority)
    engine.run()
    assert [list(step) for step in schedule_of(engine)] == [["d", "b"], ["d", "b"], ["a", "c"], ["a", "c"]]


def test_the_least_urgent_request_is_preempted(monkeypatch):
    """Priority: the victim is the running request of the highest value; fcfs: the newest."""
    for policy, victim in (("fcfs", "d"), ("priority", "a")):
        engine = FakeEngine(monkeypatch, num_gpu_blocks_override=17, scheduling_policy=policy)
        for name, priority in (("a", 9), ("b", 0), ("c", 1), ("d", 2)):
            engine.add(name, [ord(name)] * 5, 30, priority=priority)
        preempted = []
        while engine.core.has_work:
            engine.step()
            preempted += [r.id for r in engine.core.scheduler.requests.values() if r.status is RequestStatus.PREEMPTED]
        engine.assert_as_expected()
        assert preempted[0] == victim


def test_a_preempted_request_comes_back_before_new_ones(monkeypatch):
    engine = FakeEngine(monkeypatch, num_gpu_blocks_override=14, max_model_len=40)
    for name in "abc":
        engine.add(name, [ord(name)] * 5, 25)
    while not engine.core.scheduler.num_preemptions:
        engine.step()
    engine.add("late", [1, 2, 3], 3)
    engine.run()
    engine.assert_as_expected()
    admitted = [new.message.request_id for step in engine.worker.trace for new in step.new_requests]
    assert admitted[-1] == "late"
    assert len(admitted) == 3 + engine.core.scheduler.num_preemptions + 1


def test_no_ping_pong(monkeypatch):
    """Eight long generations in a pool for three: each is preempted about once, not once per block."""
    engine = FakeEngine(monkeypatch, num_gpu_blocks_override=1 + 3 * 14)
    for n in range(8):
        engine.add(str(n), [n] * 6, 48)
    engine.run()
    engine.assert_as_expected()
    assert 4 <= engine.core.scheduler.num_preemptions <= 12
    wasted = sum(s.total_num_scheduled_tokens for s in engine.worker.trace) - 8 * (6 + 48 - 1)
    assert wasted < 8 * 54 / 2, "recomputed tokens"


def test_a_request_that_can_never_fit_is_refused_at_once(monkeypatch):
    engine = FakeEngine(monkeypatch, num_gpu_blocks_override=17)
    # A pool that shrank after start: the engine itself lowers max_model_len to what fits.
    engine.core.max_model_len = 200
    engine.add("fits", range(30), 34)
    with pytest.raises(ValueError, match="lower max_tokens or raise kv_cache_memory_bytes"):
        engine.add("too long", range(30), 36)
    engine.run()
    assert engine.tokens["fits"] == expected_tokens(range(30), 34)


def test_a_request_id_in_use_is_refused(monkeypatch):
    engine = FakeEngine(monkeypatch)
    engine.add("a", range(5), 5)
    with pytest.raises(ValueError, match="'a' is in use"):
        engine.add("a", range(5), 5)
    engine.run()
    engine.add("a", range(7), 3)
    engine.finish_reasons.clear()
    engine.run()
    engine.assert_as_expected()


def test_the_last_token_is_never_computed(monkeypatch):
    engine = FakeEngine(monkeypatch, max_model_len=16)
    engine.add("a", range(5), 100)
    engine.run()
    assert len(engine.tokens["a"]) == 11
    assert sum(s.total_num_scheduled_tokens for s in engine.worker.trace) == 15
    assert engine.finish_reasons["a"] == "length"


def test_eos_and_stop_tokens(monkeypatch):
    tokens = expected_tokens(range(5), 30)
    engine = FakeEngine(monkeypatch, eos=[tokens[7]])
    engine.add("a", range(5), 30)
    engine.run()
    assert engine.tokens["a"] == tokens[:8]
    assert engine.finish_reasons["a"] == "stop"


@pytest.mark.parametrize("chunk", [1, 2, 15, 16, 17])
@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 48, 49])
def test_chunk_corner_cases(monkeypatch, length, chunk):
    """Only the last chunk samples; a last chunk of one token is prefill like any other (fault 10)."""
    for caching in (False, True):
        engine = FakeEngine(
            monkeypatch,
            specs=[full_spec(16), sliding_spec(17, 16)],
            max_model_len=80,
            block_size=16,
            long_prefill_token_threshold=chunk,
            enable_prefix_caching=caching,
        )
        for name in ("cold", "hot"):
            start = len(engine.worker.trace)
            engine.add(name, range(length), 3)
            engine.run()
            cached = (length - 1) // 16 * 16 if caching and name == "hot" else 0
            assert engine.num_cached[name] == cached
            steps = engine.worker.trace[start:]
            num_chunks = -(-(length - cached) // chunk)
            assert [s.num_logits for s in steps] == [[0]] * (num_chunks - 1) + [[1]] * 3
            assert [s.num_scheduled_tokens for s in steps[:num_chunks]] == [
                [min(chunk, length - at)] for at in range(cached, length, chunk)
            ]
        engine.assert_as_expected()


def test_two_steps_in_flight_overlap(monkeypatch):
    """The next step is scheduled before the tokens of the first are known, and nothing is lost at the end."""
    engine = FakeEngine(monkeypatch, num_steps_in_flight=2)
    for n in range(4):
        engine.add(str(n), range(n, n + 9), 10)
    most = 0
    while engine.core.has_work:
        engine.step()
        most = max(most, engine.core.scheduler.num_steps_in_flight)
    engine.assert_as_expected()
    assert most == 1, "after a step has been collected, one is still in flight"
    assert len(engine.worker.trace) == 10, "max_tokens is known in advance: no step is wasted"


def test_a_stop_that_was_not_foreseen_wastes_one_step_only(monkeypatch):
    tokens = expected_tokens(range(5), 30)
    engine = FakeEngine(monkeypatch, num_steps_in_flight=2, eos=[tokens[4]])
    engine.add("a", range(5), 30)
    engine.run()
    assert engine.tokens["a"] == tokens[:5]
    assert len(engine.worker.trace) == 6


def test_abort_waiting_running_and_preempted(monkeypatch):
    engine = FakeEngine(monkeypatch, num_gpu_blocks_override=17, max_model_len=60, max_num_seqs=3)
    for name in "abcdef":
        engine.add(name, [ord(name)] * 5, 30)
    while not engine.core.scheduler.num_preemptions:
        engine.step()
    preempted = [r.id for r in engine.core.scheduler.requests.values() if r.status is RequestStatus.PREEMPTED]
    engine.core.abort_requests([preempted[0], "a", "f", "f", "unknown"])
    engine.run()
    engine.assert_as_expected([name for name in "abcdef" if name not in {preempted[0], "a", "f"}])
    assert engine.core.kv.pool.num_free == engine.core.kv.pool.num_usable


def test_a_failed_step_ends_its_requests_only(monkeypatch):
    engine = FakeEngine(monkeypatch, max_num_seqs=2)
    for name in "abcd":
        engine.add(name, range(9), 5)
    engine.worker.failing_steps = {2}
    engine.run()
    assert {name: engine.finish_reasons[name] for name in "abcd"} == {
        "a": "error",
        "b": "error",
        "c": "length",
        "d": "length",
    }
    engine.assert_as_expected(["c", "d"])
    assert engine.num_cached["c"] == 8, "step 1 filled the blocks and did not fail"


def test_what_a_failed_step_filled_is_not_found(monkeypatch):
    engine = FakeEngine(monkeypatch)
    engine.worker.failing_steps = {1}
    engine.add("a", range(9), 5)
    engine.run()
    assert engine.finish_reasons["a"] == "error"
    engine.add("b", range(9), 5)
    engine.run()
    assert engine.num_cached["b"] == 0
    engine.assert_as_expected(["b"])


@pytest.mark.parametrize("num_steps_in_flight", [1, 2])
@pytest.mark.parametrize("budget", [1, 4, 64])
def test_prompts_without_output(monkeypatch, num_steps_in_flight, budget):
    engine = FakeEngine(monkeypatch, num_steps_in_flight=num_steps_in_flight, max_num_batched_tokens=budget)
    for name, length in (("a", 1), ("b", 9), ("c", 8)):
        engine.add(name, range(length), 0, prompt_logprobs=0)
    engine.add("d", range(9), 5)
    engine.run()
    engine.assert_as_expected()
    assert engine.tokens["b"] == []
    assert engine.finish_reasons == {"a": "length", "b": "length", "c": "length", "d": "length"}
    assert engine.num_cached["d"] == 8, "what they computed can be found"


def test_prompt_logprobs_are_computed_and_not_taken_from_the_cache(monkeypatch):
    engine = FakeEngine(monkeypatch)
    for name, wanted in (("a", None), ("b", 0), ("c", None)):
        engine.add(name, range(9), 3, prompt_logprobs=wanted)
        engine.run()
    engine.assert_as_expected()
    assert engine.num_cached == {"a": 0, "b": 0, "c": 8}


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 64])
def test_prompt_logprobs_survive_chunks_and_preemption(monkeypatch, chunk):
    engine = FakeEngine(monkeypatch, num_gpu_blocks_override=20, long_prefill_token_threshold=chunk)
    for name in "abcd":
        engine.add(name, [ord(name), *range(12)], 30, prompt_logprobs=0)
    while engine.core.has_work and not engine.core.scheduler.num_preemptions:
        engine.step()
    resumed = engine.core.scheduler.waiting.peek()
    assert resumed.num_prompt_logprobs == len(engine.prompt_logprobs.get(resumed.id, ()))
    engine.run()
    engine.assert_as_expected()


def test_a_request_that_the_model_breaks_on_ends_alone(monkeypatch):
    """What it wrote is not found any more, for it is doubtful."""
    engine = FakeEngine(monkeypatch)
    engine.add("a", [*range(8), BREAKING], 5)
    engine.add("b", [*range(50, 58), 1], 5)
    engine.add("c", [*range(8), 1], 5)
    engine.run()
    assert engine.finish_reasons == {"a": "error", "b": "length", "c": "length"}
    engine.assert_as_expected(["b", "c"])
    engine.add("d", [*range(8), 1], 5)
    engine.add("e", [*range(50, 58), 1], 5)
    engine.run()
    assert (engine.num_cached["d"], engine.num_cached["e"]) == (0, 8)
    engine.assert_as_expected(["d", "e"])
