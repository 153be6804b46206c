"""How many blocks there are, and what becomes of max_model_len."""

import logging
from dataclasses import replace

import pytest

from pelton.config import EngineArgs
from pelton.core.kv_spec import FullAttentionSpec, KVCacheGroup
from pelton.engine.kv_sizing import bytes_per_block, requested_model_len, served_model_len, size_kv_cache
from tests.support.fakes import FakeEngine, full_spec, sliding_spec

SPEC = FullAttentionSpec(block_size=16, num_kv_heads=3, head_size=64, dtype="float32")
LAYER_BYTES = 2 * 16 * 3 * 64 * 4
ONE_GROUP = [KVCacheGroup(SPEC, tuple(range(30)))]
TWO_GROUPS = [KVCacheGroup(SPEC, tuple(range(20))), KVCacheGroup(SPEC, tuple(range(20, 30)))]


def test_bytes_per_block():
    assert bytes_per_block(ONE_GROUP) == 30 * LAYER_BYTES
    assert bytes_per_block(TWO_GROUPS) == 20 * LAYER_BYTES, "groups share the storage"


def test_half_the_bytes_make_twice_the_blocks():
    halved = [KVCacheGroup(replace(SPEC, dtype="bfloat16"), group.layers) for group in ONE_GROUP]
    memory = 10_000 * LAYER_BYTES
    assert size(halved, kv_cache_memory_bytes=memory) == 2 * (memory // bytes_per_block(ONE_GROUP)) == 666


def size(groups=ONE_GROUP, available=1 << 40, max_model_len=1000, **args):
    return size_kv_cache(EngineArgs.create(**args), groups, available, max_model_len)


def test_given_memory_goes_before_the_default():
    per_block = 30 * LAYER_BYTES
    assert size(kv_cache_memory_bytes=100 * per_block) == 100
    assert size(kv_cache_memory_bytes=100 * per_block - 1) == 99
    assert size(kv_cache_memory_bytes=100 * per_block, available=100 * per_block) == 100


def test_default_share_of_the_available_memory():
    per_block = 30 * LAYER_BYTES
    assert size(available=50 * per_block) == 20
    assert size(available=1 << 40) == 4 * 1024**3 // per_block


@pytest.mark.parametrize(
    "args", [{"kv_cache_memory_bytes": 10**15}, {"num_gpu_blocks_override": 10**12}], ids=lambda args: next(iter(args))
)
def test_more_than_there_is_is_refused(args):
    (name, value) = next(iter(args.items()))
    with pytest.raises(ValueError, match=f"{name} is {value}, which takes .* GB; lower {name}"):
        size(**args)


def test_no_more_than_all_requests_can_hold():
    """A request of 1000 tokens holds 63 blocks per group; the null block comes on top."""
    assert size(max_num_seqs=4) == 4 * 63 + 1
    assert size(groups=TWO_GROUPS, max_num_seqs=4) == 4 * 2 * 63 + 1
    assert size(max_num_seqs=4, kv_cache_memory_bytes=1 << 40) == 4 * 63 + 1
    assert size(max_num_seqs=1, max_model_len=16) == 2
    assert size(max_num_seqs=1, max_model_len=17) == 3


def test_an_override_is_taken_as_it_is():
    assert size(num_gpu_blocks_override=7) == 7
    assert size(num_gpu_blocks_override=100_000, max_num_seqs=1) == 100_000


@pytest.mark.parametrize("num_bytes", [1, 2 * 30 * LAYER_BYTES - 1])
def test_memory_for_no_block_at_all(num_bytes):
    with pytest.raises(ValueError, match="at least 2 are needed; raise kv_cache_memory_bytes") as caught:
        size(kv_cache_memory_bytes=num_bytes)
    assert str(num_bytes) in str(caught.value)
    assert str(30 * LAYER_BYTES) in str(caught.value)


def test_requested_model_len():
    assert requested_model_len(EngineArgs.create(), 8192) == 8192
    assert requested_model_len(EngineArgs.create(max_model_len=8192), 8192) == 8192
    assert requested_model_len(EngineArgs.create(max_model_len=2), 8192) == 2
    with pytest.raises(ValueError, match=r"max_model_len is 8193, but the model's context length is 8192; lower"):
        requested_model_len(EngineArgs.create(max_model_len=8193), 8192)


def test_a_length_that_fits_is_kept(caplog):
    assert served_model_len(EngineArgs.create(), 100, 100) == 100
    assert served_model_len(EngineArgs.create(max_model_len=100), 100, 100) == 100
    assert caplog.text == ""


def test_a_length_that_the_user_asked_for_is_kept_or_refused():
    with pytest.raises(ValueError, match="max_model_len is 101, but the KV cache holds a request of at most 100"):
        served_model_len(EngineArgs.create(max_model_len=101), 100, 101)


def test_the_models_own_length_is_lowered_and_said_so(caplog):
    with caplog.at_level(logging.WARNING):
        assert served_model_len(EngineArgs.create(), 100, 8192) == 100
    assert "at most 100 tokens" in caplog.text
    assert "8192" in caplog.text
    assert "raise kv_cache_memory_bytes" in caplog.text


class ModelsOwnLength(FakeEngine):
    """The fake engine sets max_model_len; here it is the model that does."""

    def __init__(self, monkeypatch, length, **engine_args):
        create = EngineArgs.create

        def without_length(**kwargs):
            del kwargs["max_model_len"]
            return create(**kwargs)

        monkeypatch.setattr(EngineArgs, "create", without_length)
        super().__init__(monkeypatch, max_model_len=length, **engine_args)


def test_the_core_serves_exactly_what_fits(monkeypatch, caplog):
    """5 blocks of 4 tokens: 20 tokens of KV cache, and a last token that needs none."""
    engine = ModelsOwnLength(monkeypatch, 64, num_gpu_blocks_override=6)
    assert engine.core.max_model_len == 21
    assert "at most 21 tokens" in caplog.text
    engine.add("a", list(range(20)), 100)
    engine.add("b", [1], 100)
    engine.run()
    assert {name: len(tokens) for name, tokens in engine.tokens.items()} == {"a": 1, "b": 20}
    engine.assert_as_expected()


def test_the_core_refuses_a_length_that_does_not_fit(monkeypatch):
    with pytest.raises(ValueError, match="max_model_len is 22, but the KV cache holds a request of at most 21"):
        FakeEngine(monkeypatch, max_model_len=22, num_gpu_blocks_override=6)
    assert FakeEngine(monkeypatch, max_model_len=21, num_gpu_blocks_override=6).core.max_model_len == 21


def test_memory_in_bytes_reaches_the_pool(monkeypatch):
    """A block of the fake model's one layer: 2 * 4 tokens * 1 head * 2 floats of 4 bytes."""
    engine = FakeEngine(monkeypatch, kv_cache_memory_bytes=64 * 30, num_gpu_blocks_override=None)
    assert engine.core.kv.pool.num_blocks == 30
    assert engine.worker.model.store.shape == (30, 4)


def test_windows_bound_what_a_long_request_holds(monkeypatch):
    """Sliding layers give blocks back, so a small pool serves a long context."""
    engine = FakeEngine(
        monkeypatch, specs=[sliding_spec(6)], max_model_len=2000, num_gpu_blocks_override=8, max_num_batched_tokens=8
    )
    assert engine.core.max_model_len == 2000
    engine.add("a", list(range(100)), 50)
    engine.run()
    engine.assert_as_expected()
    with pytest.raises(ValueError, match="max_model_len is 2000"):
        FakeEngine(monkeypatch, specs=[full_spec()], max_model_len=2000, num_gpu_blocks_override=8)
