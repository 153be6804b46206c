"""Ctrl-C at any moment: nothing computed by halves is ever served, and the engine goes on."""

import pytest

from tests.support.fakes import FakeEngine

PLACES = {
    "planning, before the step counts": ("scheduler", "_schedule_waiting", False),
    "planning, after blocks were given": ("scheduler", "_schedule_waiting", True),
    "giving blocks": ("kv", "admit", True),
    "taking results": ("scheduler", "_release_finished", True),
    "running the model": ("worker", "execute", False),
    "after the model wrote": ("worker", "execute", True),
}


@pytest.mark.parametrize("num_steps_in_flight", [1, 2])
@pytest.mark.parametrize("place", PLACES)
def test_interrupt(monkeypatch, place, num_steps_in_flight):
    where, method, after = PLACES[place]
    engine = FakeEngine(monkeypatch, num_steps_in_flight=num_steps_in_flight)
    target = {"scheduler": engine.core.scheduler, "kv": engine.core.kv, "worker": engine.worker}[where]
    original = getattr(target, method)

    def interrupted(*args, **kwargs):
        if after:
            original(*args, **kwargs)
        raise KeyboardInterrupt

    engine.add("a", range(20), 2)
    engine.add("b", range(20), 9)
    monkeypatch.setattr(target, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    monkeypatch.setattr(target, method, original)
    engine.core.abort_requests(["a", "b"])
    for _ in range(3):
        engine.step()
    engine.poison_from_now_on()
    for name in ("c", "d"):  # the same prompt: a block that was never filled would be caught as poison
        engine.add(name, range(20), 5)
        engine.run()
    engine.assert_as_expected(["c", "d"])
    assert engine.num_cached["d"] == 16
    assert not engine.core.kv.integrity_problems()
