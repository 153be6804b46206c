"""Steps without a scheduler."""

import numpy as np
import pytest

from pelton.bench.steps import StepBench, StepShape
from pelton.config import EngineArgs
from pelton.runner import CPUWorker
from pelton.sampling_params import SamplingParams
from tests.support.tiny_llama import CONTEXT_LENGTH, NUM_LAYERS, tiny_llama

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture
def executed(monkeypatch):
    """Every step that a worker runs, and the tokens that it gave."""
    steps = []
    execute = CPUWorker.execute

    def recorded(self, step):
        output = execute(self, step)
        steps.append((step, output))
        return output

    monkeypatch.setattr(CPUWorker, "execute", recorded)
    return steps


def make_bench(*shapes, **engine_args):
    return StepBench(EngineArgs.create(model=tiny_llama(), num_threads=1, **engine_args), shapes, GREEDY)


def test_steps_have_their_shapes(executed):
    shapes = [StepShape(1, 1, 20), StepShape(3, 1, 20), StepShape(2, 1, 0), StepShape(1, 40, 0), StepShape(2, 5, 7)]
    bench = make_bench(*shapes)
    try:
        executed.clear()
        for shape in shapes * 2:
            assert bench.run(shape) > 0
    finally:
        bench.close()
    for shape, (step, output) in zip(shapes * 2, executed, strict=True):
        assert step.num_scheduled_tokens == [shape.num_tokens] * shape.num_requests
        assert step.num_computed_tokens == [shape.context] * shape.num_requests
        assert len(set(step.request_ids)) == shape.num_requests
        assert [len(tokens) for tokens in output.token_ids] == [1] * shape.num_requests
        assert not output.errors


def test_the_whole_cache_is_in_memory():
    """What was never written would be read from the caches, however much of it there is."""
    bench = make_bench(StepShape(4, 1, 50))
    try:
        assert len(bench.model.kv_layers) == NUM_LAYERS
        for layer in bench.model.kv_layers:
            assert layer.array.shape[0] >= 1 + 4 * 4
            assert np.all(layer.array != 0)
    finally:
        bench.close()


def test_more_requests_than_a_server_would_run():
    shape = StepShape(300, 1, 3)
    bench = make_bench(shape)
    try:
        assert bench.run(shape) > 0
    finally:
        bench.close()


def test_the_longest_context():
    shape = StepShape(1, 1, CONTEXT_LENGTH - 1)
    bench = make_bench(shape)
    bench.run(shape)
    bench.close()
    with pytest.raises(ValueError, match=rf"end of {CONTEXT_LENGTH + 1} tokens .* context length is {CONTEXT_LENGTH};"):
        make_bench(StepShape(1, 1, CONTEXT_LENGTH))


def test_too_little_memory(monkeypatch):
    monkeypatch.setattr(CPUWorker, "available_memory", lambda self: 10_000)
    with pytest.raises(ValueError, match=r"takes 0\.\d+ GB.*lower the batch sizes or the context"):
        make_bench(StepShape(256, 1, 200))
