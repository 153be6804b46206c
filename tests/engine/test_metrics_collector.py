"""Figures of all front ends, for one of them."""

import pytest

from pelton.core.control_messages import MetricsCall, MetricsReply, MetricsState
from pelton.engine import metrics_collector
from pelton.engine.metrics_collector import PATIENCE, MetricsCollector


def state(rank: int) -> MetricsState:
    return MetricsState(rank, {}, {}, {}, None)


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(metrics_collector, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def sent() -> list:
    return []


@pytest.fixture
def collector(clock, sent) -> MetricsCollector:
    return MetricsCollector(lambda identity, message: sent.append((identity, message)))


def test_all_are_asked_and_the_answer_comes_when_all_have_replied(collector, sent):
    collector.collect(b"a", 7, [b"a", b"b"])
    assert sent == [(b"a", MetricsCall(1)), (b"b", MetricsCall(1))]
    sent.clear()
    collector.take(b"b", MetricsReply(1, [state(0)]))
    collector.take(b"b", MetricsReply(1, [state(5)]))  # a second time
    collector.take(b"c", MetricsReply(1, [state(6)]))  # nobody asked it
    collector.take(b"a", MetricsReply(2, [state(8)]))  # to another call
    assert sent == []
    assert collector.is_waiting
    collector.take(b"a", MetricsReply(1, [state(1)]))
    assert sent == [(b"a", MetricsReply(7, [state(0), state(1)]))]
    assert not collector.is_waiting


def test_calls_of_several_at_once(collector, sent):
    collector.collect(b"a", 1, [b"a", b"b"])
    collector.collect(b"b", 1, [b"a", b"b"])
    sent.clear()
    for number in (2, 1):
        for identity in (b"a", b"b"):
            collector.take(identity, MetricsReply(number, [state(number)]))
    assert sent == [(b"b", MetricsReply(1, [state(2)] * 2)), (b"a", MetricsReply(1, [state(1)] * 2))]


def test_who_takes_too_long_is_left_out(collector, sent, clock):
    collector.collect(b"a", 1, [b"a", b"b"])
    collector.take(b"a", MetricsReply(1, [state(0)]))
    sent.clear()
    clock[0] += PATIENCE / 2
    collector.look_at_the_clock()
    assert sent == []
    clock[0] += PATIENCE
    collector.look_at_the_clock()
    assert sent == [(b"a", MetricsReply(1, [state(0)]))]
    collector.take(b"b", MetricsReply(1, [state(1)]))
    assert len(sent) == 1


def test_who_has_ended_is_not_waited_for(collector, sent):
    collector.collect(b"a", 1, [b"a", b"b"])
    collector.collect(b"a", 2, [b"a"])
    collector.take(b"a", MetricsReply(1, [state(0)]))
    sent.clear()
    collector.forget(b"b")
    assert sent == [(b"a", MetricsReply(1, [state(0)]))]
    assert collector.is_waiting
