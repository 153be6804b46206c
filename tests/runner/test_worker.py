"""What the worker makes of limits that no machine has memory for."""

import gc
import tracemalloc

import pytest

from pelton import LLM, SamplingParams
from pelton.ops.interpreter import NumpyBackend
from pelton.sampling.logits_processor import LogitsProcessor
from tests.support.tiny_llama import tiny_llama

GREEDY = SamplingParams(temperature=0, max_tokens=4)


@pytest.mark.parametrize("limits", [{"max_num_batched_tokens": 10**12}, {"max_num_seqs": 10**12}])
def test_huge_limits_are_cut_to_what_can_ever_happen(limits):
    llm = LLM(model=tiny_llama(), max_model_len=64, num_gpu_blocks_override=20, **limits)
    plain = LLM(model=tiny_llama(), max_model_len=64)
    assert (
        llm.generate("Hello", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
        == plain.generate("Hello", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    )


def test_memory_that_does_not_suffice_is_said_so(monkeypatch):
    def no_memory(*args, **kwargs):
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr("pelton.runner.worker.ReplayedModel", no_memory)
    with pytest.raises(ValueError, match=r"Unable to allocate 9 TiB.*lower max_num_batched_tokens"):
        LLM(model=tiny_llama(), max_model_len=64)


def test_a_model_that_nobody_uses_is_freed_at_once():
    """Without waiting for the garbage collector, which knows nothing of the size of arrays."""
    gc.collect()
    gc.disable()
    try:
        tracemalloc.start()
        sizes = []
        for _ in range(3):
            llm = LLM(model=tiny_llama(), max_model_len=64, num_gpu_blocks_override=6)
            llm.generate("Hello", GREEDY, use_tqdm=False)
            del llm
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
        gc.enable()
    assert sizes[2] - sizes[1] < 100_000, sizes  # the arenas of its programs are hundreds of times as large


@pytest.fixture
def closed(monkeypatch):
    """Backends that were closed."""
    backends = []

    class Closing(NumpyBackend):
        def close(self):
            backends.append(self)

    monkeypatch.setattr("pelton.runner.worker.start_backend", lambda execution: Closing())
    return backends


def test_shutdown_closes_the_backend(closed):
    llm = LLM(model=tiny_llama(), max_model_len=64)
    assert closed == []
    llm.shutdown()
    llm.shutdown()
    assert len(closed) == 1


@pytest.mark.parametrize(
    ("culprit", "message"),
    [
        ("pelton.runner.worker.load_weights", "does not suffice for the weights of .*tiny-llama"),
        ("pelton.runner.worker.ReplayedModel", "lower max_num_batched_tokens"),
    ],
)
def test_a_start_that_fails_closes_the_backend(closed, monkeypatch, culprit, message):
    def no_memory(*args, **kwargs):
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr(culprit, no_memory)
    with pytest.raises(ValueError, match=message):
        LLM(model=tiny_llama(), max_model_len=64)
    assert len(closed) == 1


@pytest.mark.usefixtures("closed")
def test_kernels_and_formats_are_named_at_the_start(caplog):
    with caplog.at_level("INFO", logger="pelton"):
        LLM(model=tiny_llama(), max_model_len=64, dtype="bfloat16", kv_cache_dtype="float32")
    assert "Kernels: numpy; weights in bf16 (quantization: none), keys and values in float32" in caplog.messages


@pytest.mark.usefixtures("closed")
def test_quantized_weights_are_named_the_larger_first(caplog):
    with caplog.at_level("INFO", logger="pelton"):
        LLM(model=tiny_llama(), max_model_len=64, quantization="int4")
    line = "Kernels: numpy; weights in int8 and int4 (quantization: int4), keys and values in bfloat16"
    assert line in caplog.messages, "the embedding is the larger part"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_launch_by_launch_gives_the_same(dtype):
    answers = [
        LLM(model=tiny_llama(), max_model_len=64, dtype=dtype, **mode).generate("Hello", GREEDY, use_tqdm=False)
        for mode in ({}, {"enforce_eager": True}, {"enforce_eager": True, "check_nan": True})
    ]
    assert len({tuple(answer[0].outputs[0].token_ids) for answer in answers}) == 1


class Unmade(LogitsProcessor):
    def __init__(self):
        raise OSError("no table")

    def new_request(self, params):
        return None


def test_a_logits_processor_that_cannot_be_made_is_named():
    with pytest.raises(ValueError, match=r"^logits processor Unmade cannot be made: OSError: no table$"):
        LLM(model=tiny_llama(), max_model_len=64, logits_processors=[Unmade])
