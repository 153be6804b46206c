"""The engine's figures, as they leave the core with every step."""

import pytest

from tests.support.fakes import FakeEngine


def test_stats_follow_the_engine(monkeypatch):
    engine = FakeEngine(monkeypatch, max_num_seqs=2, num_gpu_blocks_override=17)
    for name in "abc":
        engine.add(name, range(10), 5)
    first = engine.core.step().stats
    assert (first.num_running, first.num_waiting) == (2, 1)
    assert first.num_scheduled_tokens == 10 + 2
    # "a" takes 3 blocks; "b" shares two of them and takes one.
    assert first.kv_cache_usage == pytest.approx(4 / 16)
    assert (first.num_prefix_queries, first.num_prefix_hits) == (20, 8)
    total = first.num_scheduled_tokens
    while engine.core.has_work:
        last = engine.core.step().stats
        total += last.num_scheduled_tokens
    assert total == sum(step.total_num_scheduled_tokens for step in engine.worker.trace)
    assert engine.core.step().stats.num_scheduled_tokens == 0
    assert (last.num_running, last.num_waiting, last.kv_cache_usage) == (0, 0, 0.0)
    assert (last.num_prefix_queries, last.num_prefix_hits) == (30, 16)
    assert last.num_preemptions == last.num_integrity_failures == 0


def test_preemptions_are_counted(monkeypatch):
    engine = FakeEngine(monkeypatch, num_gpu_blocks_override=17)
    for n in range(4):
        engine.add(str(n), [n] * 5, 30)
    engine.run()
    assert engine.core.stats.num_preemptions == engine.core.scheduler.num_preemptions > 0
