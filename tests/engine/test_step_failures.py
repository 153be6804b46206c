"""A step that fails ends its own requests; damaged bookkeeping ends those it concerns; the engine goes on."""

import logging

import pytest

from pelton.core.request import RequestStatus
from tests.support.fakes import POISON, FakeEngine, full_spec, sliding_spec

PROMPT = list(range(10, 22))


def pool_of(engine):
    return engine.core.kv.pool


def assert_usable(engine):
    """New requests get their tokens, and everything comes back when they end."""
    engine.poison_from_now_on()
    names = [f"after {len(engine.prompts)}.{i}" for i in range(3)]
    for name in names:
        engine.add(name, [*PROMPT, len(name)], 8)
    engine.run()
    engine.assert_as_expected(names)
    assert pool_of(engine).num_free == pool_of(engine).num_usable
    assert engine.core.kv.integrity_problems() == []


# ------------------------------------------------------------------------------------------------ failing steps


@pytest.mark.parametrize("num_steps_in_flight", [1, 2, 3])
def test_the_requests_of_a_failing_step_end_with_an_error(monkeypatch, caplog, num_steps_in_flight):
    engine = FakeEngine(monkeypatch, num_steps_in_flight=num_steps_in_flight, max_num_seqs=2)
    for name in ("a", "b", "c"):
        engine.add(name, PROMPT, 6)
    engine.worker.failing_steps = {2}
    outputs = []
    while engine.core.has_work:
        outputs += engine.core.step().outputs
    ends = {output.request_id: output for output in outputs if output.finish_reason is not None}
    for name in ("a", "b"):
        assert ends[name].finish_reason == "error"
        assert ends[name].stop_reason == "RuntimeError: the model broke"
        assert ends[name].new_token_ids == []
    assert ends["c"].finish_reason == "length", "it was not in that step"
    assert "a step failed" in caplog.text
    assert "the model broke" in caplog.text
    assert engine.core.num_integrity_failures == 0
    assert_usable(engine)


def test_a_failed_step_leaves_nothing_in_the_prefix_cache(monkeypatch):
    """What the step should have written must not be found."""
    engine = FakeEngine(monkeypatch)
    engine.worker.failing_steps = {1}
    engine.add("a", PROMPT, 4)
    engine.run()
    assert engine.finish_reasons == {"a": "error"}
    engine.add("b", PROMPT, 4)
    engine.run()
    assert engine.num_cached["b"] == 0
    engine.assert_as_expected(["b"])


def test_every_step_fails(monkeypatch):
    engine = FakeEngine(monkeypatch, num_steps_in_flight=2)
    engine.worker.failing_steps = set(range(1, 1000))
    for number in range(30):
        engine.add(str(number), PROMPT, 4)
    engine.run()
    assert set(engine.finish_reasons.values()) == {"error"}
    engine.worker.failing_steps = set()
    assert_usable(engine)


# ------------------------------------------------------------------------------------------------ damage


def corrupt_ref_count_up(engine):
    held_block(engine).ref_count += 1


def corrupt_ref_count_down(engine):
    """The block becomes free while two tables hold it."""
    held_block(engine).ref_count -= 1


def free_a_held_block(engine):
    pool_of(engine).release([held_block(engine)])


def leak_a_block(engine):
    pool_of(engine).allocate()


def lose_the_rest_of_the_free_queue(engine):
    queue = pool_of(engine)._free
    queue._head.next.next = None


def close_the_free_queue_to_a_circle(engine):
    queue = pool_of(engine)._free
    first = queue._head.next
    first.next.next = first


def miscount_the_free_queue(engine):
    pool_of(engine)._free.size += 1000


def hide_the_free_blocks(engine):
    pool_of(engine)._free.size = 0


def empty_the_prefix_map(engine):
    pool_of(engine).prefix_maps[0].clear()


def reference_the_null_block(engine):
    pool_of(engine).null_block.ref_count = 1


def reserve_too_much(engine):
    engine.core.kv._num_reserved += 5


def forget_a_request(engine):
    engine.core.kv._requests.clear()


DAMAGES = [
    corrupt_ref_count_up,
    corrupt_ref_count_down,
    free_a_held_block,
    leak_a_block,
    lose_the_rest_of_the_free_queue,
    close_the_free_queue_to_a_circle,
    miscount_the_free_queue,
    hide_the_free_blocks,
    empty_the_prefix_map,
    reference_the_null_block,
    reserve_too_much,
    forget_a_request,
]


def distrust_nothing(engine):
    """No poison from now on: a fault of the bookkeeping is to be found as such, not by the model."""
    pool_of(engine).poison = lambda block: None
    store = engine.worker.model.store
    store[store == POISON] = 0


def held_block(engine):
    return next(block for block in pool_of(engine).blocks if block.ref_count)


@pytest.mark.parametrize("specs", [[full_spec()], [full_spec(), sliding_spec(6)]], ids=["full", "mixed"])
@pytest.mark.parametrize("num_steps_in_flight", [1, 2])
@pytest.mark.parametrize("when", [1, 3, 6])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_logged_counted_and_recovered_from(monkeypatch, caplog, damage, when, num_steps_in_flight, specs):
    monkeypatch.delenv("PELTON_STRICT_INVARIANTS")
    engine = FakeEngine(monkeypatch, specs=specs, num_steps_in_flight=num_steps_in_flight, num_gpu_blocks_override=40)
    for name in ("a", "b", "c"):
        engine.add(name, PROMPT, 5 + len(engine.prompts))
    for _ in range(when):
        engine.step()
    distrust_nothing(engine)
    damage(engine)
    engine.run(max_steps=200)
    assert engine.finish_reasons.keys() == {"a", "b", "c"}, "every request ends, one way or the other"
    assert set(engine.finish_reasons.values()) <= {"length", "error"}
    assert engine.core.num_integrity_failures >= 1
    assert caplog.text.count("the KV cache cannot be trusted") == engine.core.num_integrity_failures
    assert_usable(engine)


@pytest.mark.parametrize("damage", [leak_a_block, corrupt_ref_count_up, empty_the_prefix_map])
def test_tests_see_damage_at_once(monkeypatch, damage):
    """With PELTON_STRICT_INVARIANTS=1, as here."""
    engine = FakeEngine(monkeypatch)
    engine.add("a", PROMPT, 5)
    engine.step()
    damage(engine)
    with pytest.raises((AssertionError, KeyError)):
        engine.run()


def test_an_end_before_the_damage_shows_is_reported(monkeypatch):
    """Two requests end in one step; giving back the second one's blocks fails. Neither may be forgotten."""
    monkeypatch.delenv("PELTON_STRICT_INVARIANTS")
    engine = FakeEngine(monkeypatch)
    engine.add("a", PROMPT, 3)
    engine.add("b", [1, 2, 3, 4, 5], 3)
    engine.step()
    engine.step()
    distrust_nothing(engine)
    own = engine.core.kv._requests["b"].tables[0][-1]
    pool_of(engine).release([own])
    own.ref_count += 1  # in the free queue, yet held
    engine.run(max_steps=50)
    assert engine.finish_reasons.keys() == {"a", "b"}
    assert "error" in engine.finish_reasons.values()
    assert engine.core.num_integrity_failures == 1
    assert_usable(engine)


@pytest.mark.parametrize("num_steps_in_flight", [1, 2])
def test_aborting_over_damage_does_not_raise(monkeypatch, num_steps_in_flight):
    monkeypatch.delenv("PELTON_STRICT_INVARIANTS")
    engine = FakeEngine(monkeypatch, num_steps_in_flight=num_steps_in_flight)
    for name in ("a", "b"):
        engine.add(name, [*PROMPT, len(engine.prompts)], 9)
    engine.step()
    engine.step()
    distrust_nothing(engine)
    own = engine.core.kv._requests["a"].tables[0][-1]
    pool_of(engine).release([own])
    own.ref_count += 1
    engine.core.abort_requests(["a"])
    engine.run(max_steps=50)
    assert engine.finish_reasons["b"] in ("error", "length")
    assert engine.core.num_integrity_failures >= 1
    assert_usable(engine)


def test_damage_is_logged_as_an_error(monkeypatch, caplog):
    monkeypatch.delenv("PELTON_STRICT_INVARIANTS")
    engine = FakeEngine(monkeypatch)
    leak_a_block(engine)
    engine.add("a", PROMPT, 2)
    engine.run()
    records = [record for record in caplog.records if "cannot be trusted" in record.message]
    assert [record.levelno for record in records] == [logging.ERROR]
    assert "not free" in records[0].message or "held" in records[0].message
    assert engine.finish_reasons == {"a": "length"}, "its tokens were computed before the damage was seen"


def test_a_request_that_nothing_can_run_for_ends(monkeypatch):
    """The scheduler finds no block although nothing runs: an error, not an endless wait."""
    monkeypatch.delenv("PELTON_STRICT_INVARIANTS")
    engine = FakeEngine(monkeypatch)
    hide_the_free_blocks(engine)
    engine.add("a", PROMPT, 2)
    outputs = engine.core.step().outputs
    assert [output.finish_reason for output in outputs] == ["error"]
    assert "send the request again" in outputs[0].stop_reason
    assert engine.core.scheduler.requests == {}
    assert_usable(engine)


# ------------------------------------------------------------------------------------------------ the core's door


def test_an_id_in_use_is_refused(monkeypatch):
    engine = FakeEngine(monkeypatch)
    engine.add("a", PROMPT, 2)
    with pytest.raises(ValueError, match="request_id 'a' is in use"):
        engine.add("a", PROMPT, 2)
    engine.run()
    engine.assert_as_expected(["a"])


def test_aborts_are_idempotent(monkeypatch):
    engine = FakeEngine(monkeypatch)
    engine.add("a", PROMPT, 9)
    engine.add("b", PROMPT, 9)
    engine.step()
    request = engine.core.scheduler.requests["a"]
    for _ in range(2):
        engine.core.abort_requests(["a", "a", "never seen"])
    assert request.status is RequestStatus.FINISHED_ABORTED
    engine.run()
    engine.core.abort_requests(["a", "b"])
    assert engine.finish_reasons == {"b": "length"}
    engine.assert_as_expected(["b"])
    assert pool_of(engine).num_free == pool_of(engine).num_usable


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("no message")


@pytest.mark.parametrize(
    ("error", "stop_reason"),
    [(SilentError(), "SilentError"), (ValueError("a\nb\ud800"), "ValueError: a b")],
    ids=["silent", "lines"],
)
def test_exceptions_of_any_kind_end_only_their_step(monkeypatch, error, stop_reason):
    engine = FakeEngine(monkeypatch)
    engine.add("a", PROMPT, 6)
    with monkeypatch.context() as patched:
        patched.setattr(engine.worker, "execute", lambda step: (_ for _ in ()).throw(error))
        (output,) = engine.core.step().outputs
    assert (output.finish_reason, output.stop_reason) == ("error", stop_reason)
    assert_usable(engine)
