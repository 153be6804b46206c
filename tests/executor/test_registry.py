"""Which executor a name gives."""

import pytest

from pelton import LLM, SamplingParams
from pelton.config import EngineArgs
from pelton.executor import Executor, UniprocExecutor, make_executor
from pelton.loader import open_checkpoint
from tests.support.serving_executors import InstantExecutor
from tests.support.tiny_llama import tiny_llama


class Unmade(InstantExecutor):
    def __init__(self, args, checkpoint):
        raise OSError("no device")


class Abstract(Executor):
    pass


def make(name, **arguments):
    args = EngineArgs.create(model=tiny_llama(), distributed_executor_backend=name, **arguments)
    return make_executor(args, open_checkpoint(tiny_llama()))


def test_the_default(monkeypatch):
    monkeypatch.setenv("PELTON_CPU_ISA", "numpy")
    executor = make("uniproc", dtype="float32")
    assert type(executor) is UniprocExecutor
    assert executor.describe() == "numpy; weights in fp32, keys and values in float32"
    assert len(executor.kv_specs()) == 2
    executor.shutdown()


def test_a_class_by_its_name():
    executor = make("tests.support.serving_executors:InstantExecutor")
    assert type(executor) is InstantExecutor
    assert len(executor.kv_specs()) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no.such.module:Mine", "cannot be loaded: ModuleNotFoundError: .*PYTHONPATH=. is the current one"),
        (":Mine", "must be named as package.module:Class"),
        ("pelton.executor.base:Worker", "must be a class derived from pelton.executor.base.Executor"),
        (f"{__name__}:Abstract", "lacks available_memory, collect, initialize, kv_specs, launch, shutdown"),
        (f"{__name__}:Unmade", "cannot be made: OSError: no device"),
    ],
)
def test_refused(name, words):
    with pytest.raises(ValueError, match=f"^distributed_executor_backend '{name}' {words}"):
        make(name)


def test_the_engine_uses_it():
    llm = LLM(model=tiny_llama(), distributed_executor_backend="tests.support.serving_executors:InstantExecutor")
    prompt = [2000, 2001, 2002]
    (output,) = llm.generate({"prompt_token_ids": prompt}, SamplingParams(max_tokens=5), use_tqdm=False)
    expected = make("tests.support.serving_executors:InstantExecutor")._worker.vocabulary.expected_tokens(prompt, 5)
    assert output.outputs[0].token_ids == expected
    with pytest.raises(ValueError, match=r"^distributed_executor_backend 'no_module:X' cannot be loaded"):
        LLM(model=tiny_llama(), distributed_executor_backend="no_module:X")


def test_lockstep_needs_a_step_without_requests():
    class Independent(InstantExecutor):
        pass

    Independent.execute_dummy(None)
    with pytest.raises(TypeError, match=r"^Careless needs lockstep, so it must have an execute_dummy of its own$"):

        class Careless(InstantExecutor):
            needs_lockstep = True
