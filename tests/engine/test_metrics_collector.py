"""Figures of all front ends, for one of them."""

import msgspec
import pytest

from pelton.core.control_messages import MetricsCall, MetricsReply, MetricsState
from pelton.core.messages import EngineStats
from pelton.engine import metrics_collector
from pelton.engine.metrics import merged
from pelton.engine.metrics_collector import PATIENCE, MetricsCollector

GONE = b"gone"
IDLE = EngineStats(0, 0, 0, 0.0, 0, 0, 0, 0)


def state(number: int, stats: EngineStats | None = None) -> MetricsState:
    return MetricsState(0, {"tokens": number}, {"stop": number}, {"seconds": ([number, 0], float(number))}, stats)


def answers(sent: list) -> list[tuple[bytes, int, MetricsState]]:
    """To whom, of which call, and the figures of the only core; those heard are taken away."""
    found = [
        (identity, message.call_id, *merged(message.states))
        for identity, message in sent
        if isinstance(message, MetricsReply)
    ]
    sent.clear()
    return found


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
    def send(identity, message) -> bool:
        if identity == GONE:
            return False
        sent.append((identity, message))
        return True

    return MetricsCollector(send)


def test_all_are_asked_and_the_answer_comes_when_all_have_replied(collector, sent):
    collector.collect(b"a", 7, [b"a", b"b"])
    assert sent == [(b"a", MetricsCall(1)), (b"b", MetricsCall(1))]
    collector.take(b"b", MetricsReply(1, [state(10)]))
    collector.take(b"c", MetricsReply(1, [state(500)]))  # nobody asked it
    collector.take(b"a", MetricsReply(2, [state(1)]))  # to another call
    assert answers(sent) == []
    assert collector.is_waiting
    collector.take(b"a", MetricsReply(1, [state(2)]))
    assert answers(sent) == [(b"a", 7, state(12))]
    assert not collector.is_waiting


def test_calls_of_several_at_once(collector, sent):
    collector.collect(b"a", 1, [b"a", b"b"])
    collector.collect(b"b", 1, [b"a", b"b"])
    for number in (2, 1):
        for identity in (b"a", b"b"):
            collector.take(identity, MetricsReply(number, [state(5)]))
    assert answers(sent) == [(b"b", 1, state(10)), (b"a", 1, state(10))]


def collected(collector, sent, clock, **replies: int) -> int:
    """What is told, with these replies of `a` and `b` in time."""
    collector.collect(b"a", 1, [b"a", b"b"])
    number = sent[-1][1].call_id
    for name, counter in replies.items():
        collector.take(name.encode(), MetricsReply(number, [state(counter)]))
    clock[0] += PATIENCE / 2
    collector.look_at_the_clock()
    if len(replies) < 2:
        assert collector.is_waiting
    clock[0] += PATIENCE
    collector.look_at_the_clock()
    ((asker, call_id, figures),) = answers(sent)
    assert (asker, call_id) == (b"a", 1)
    return figures.counters["tokens"]


def test_of_who_takes_too_long_the_last_figures_count(collector, sent, clock):
    assert collected(collector, sent, clock, a=1) == 1
    collector.take(b"b", MetricsReply(1, [state(10)]))
    assert answers(sent) == []
    assert collected(collector, sent, clock, a=2) == 12
    assert collected(collector, sent, clock, a=2, b=20) == 22
    assert collected(collector, sent, clock, b=30) == 32


def test_who_has_ended_is_not_waited_for_and_counts_on(collector, sent, clock):
    collected(collector, sent, clock, a=1, b=10)
    collector.collect(b"a", 1, [b"a", b"b"])
    collector.collect(b"a", 2, [b"a"])
    collector.take(b"a", MetricsReply(sent[0][1].call_id, [state(2)]))
    assert answers(sent) == []
    collector.forget(b"b")
    assert answers(sent) == [(b"a", 1, state(12))]
    assert collector.is_waiting
    collector.take(b"b", MetricsReply(3, [state(90)]))  # it is over
    collector.take(b"a", MetricsReply(3, [state(2)]))
    assert answers(sent) == [(b"a", 2, state(12))]
    # Another one in its place, which ends as well.
    assert collected(collector, sent, clock, a=2, b=0) == 12
    assert collected(collector, sent, clock, a=2, b=7) == 19
    collector.forget(b"b")
    assert collected(collector, sent, clock, a=2) == 19


def test_requests_of_who_has_ended_are_over(collector, sent):
    """The core's counters are not."""
    older = msgspec.structs.replace(IDLE, num_prefix_hits=3, num_running=2, timestamp=10.0)
    newer = EngineStats(5, 4, 3, 0.5, 2, 9, 8, 1, timestamp=11.0)
    collector.collect(b"a", 1, [b"a", b"b"])
    collector.take(b"a", MetricsReply(1, [state(0, older)]))
    collector.take(b"b", MetricsReply(1, [state(0, newer)]))
    ((_, _, figures),) = answers(sent)
    assert figures.stats == newer
    collector.forget(b"b")
    for stats, expected in (
        (None, EngineStats(0, 0, 3, 0.0, 2, 9, 8, 1, timestamp=11.0)),
        (older, EngineStats(0, 0, 3, 0.0, 2, 9, 8, 1, timestamp=11.0)),
        (newer, newer),
    ):
        collector.collect(b"a", 1, [b"a"])
        collector.take(b"a", MetricsReply(sent[0][1].call_id, [state(0, stats)]))
        ((_, _, figures),) = answers(sent)
        assert figures.stats == expected


def test_who_cannot_be_reached_is_not_waited_for(collector, sent):
    assert collector.collect(b"a", 1, [b"a", GONE]) == [GONE]
    collector.take(b"a", MetricsReply(1, [state(3)]))
    assert answers(sent) == [(b"a", 1, state(3))]
    assert collector.collect(b"a", 2, [GONE]) == [GONE]
    assert not collector.is_waiting
