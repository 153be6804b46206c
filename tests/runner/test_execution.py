"""Arguments of the engine to backend and formats."""

import pytest

from pelton.config import EngineArgs
from pelton.loader import open_checkpoint
from pelton.loader.weights import formats_by_size
from pelton.models import create_model
from pelton.ops.interpreter import NumpyBackend
from pelton.runner import execution
from pelton.runner.execution import choose_quantization, choose_target, quantization_text, start_backend
from tests.support.tiny_llama import tiny_llama


class Native(NumpyBackend):
    name = "pretended"
    is_native = True


FORMATS = {
    (): [("fp32", "float32"), ("bf16", "bfloat16")],
    (("dtype", "float32"),): [("fp32", "float32")] * 2,
    (("dtype", "bfloat16"),): [("bf16", "bfloat16")] * 2,
    (("kv_cache_dtype", "bfloat16"),): [("fp32", "bfloat16"), ("bf16", "bfloat16")],
    (("dtype", "bfloat16"), ("kv_cache_dtype", "float32")): [("bf16", "float32")] * 2,
}
"""Arguments -> formats with numpy, and with native kernels."""


@pytest.mark.parametrize("given", FORMATS, ids=str)
def test_formats(given):
    checkpoint = open_checkpoint(tiny_llama())
    args = EngineArgs.create(block_size=5, **dict(given))
    for backend, expected in zip((NumpyBackend(), Native()), FORMATS[given], strict=True):
        target = choose_target(args, backend, checkpoint)
        assert (target.weight_format, target.kv_cache_dtype) == expected
        assert (target.backend, target.block_size) == (backend, 5)


QUANTIZED = {
    (): ("none", "stored"),
    (("dtype", "bfloat16"),): ("none", "none"),
    (("quantization", "none"),): ("none", "none"),
    (("quantization", "int8"),): ("int8", "int8"),
    (("quantization", "int4"), ("dtype", "bfloat16")): ("int4", "int4"),
}
"""Arguments -> choice with numpy, and with native kernels."""


@pytest.mark.parametrize("given", QUANTIZED, ids=str)
def test_quantization(given):
    args = EngineArgs.create(**dict(given))
    assert (choose_quantization(args, NumpyBackend()), choose_quantization(args, Native())) == QUANTIZED[given]


def test_the_log_says_why_nothing_is_taken_as_stored():
    given = EngineArgs.create(dtype="bfloat16")
    assert quantization_text(given, Native()) == "none, for dtype is given"
    assert quantization_text(given, NumpyBackend()) == "none", "it would be so without dtype, too"
    assert quantization_text(EngineArgs.create(dtype="bfloat16", quantization="none"), Native()) == "none"
    assert quantization_text(EngineArgs(), Native()) == "as stored"


def test_weights_of_smollm2():
    """The file has Q4_1 in its layers, and Q8_0 in its embedding."""
    checkpoint = open_checkpoint("smollm2")
    for given in ({}, {"quantization": "int4"}):
        target = choose_target(EngineArgs.create(**given), Native(), checkpoint)
        assert (target.activation_dtype, target.kv_cache_dtype) == ("bfloat16", "bfloat16")
        formats = {name: p.format for name, p in create_model(checkpoint.config, target).parameters().items()}
        assert formats["embed_tokens"] == "int8"
        assert {formats[name] for name in formats if "attention." in name or "mlp." in name} == {"int4"}
    target = choose_target(EngineArgs.create(quantization="int8"), NumpyBackend(), checkpoint)
    parameters = create_model(checkpoint.config, target).parameters().values()
    assert formats_by_size(parameters) == ["int8", "fp32"]


@pytest.fixture
def created(monkeypatch):
    """What backends are asked for."""
    calls = []

    def create(num_threads, **options):
        calls.append((num_threads, options))
        return NumpyBackend()

    monkeypatch.setattr(execution, "create_backend", create)
    monkeypatch.setattr(execution, "available_cores", lambda: 3)
    return calls


def test_threads_and_modes(created):
    start_backend(EngineArgs().execution)
    start_backend(EngineArgs.create(num_threads=7, enforce_eager=True, check_nan=True).execution)
    assert created == [(3, {"eager": False, "check_nan": False}), (7, {"eager": True, "check_nan": True})]


def test_threads_that_cannot_be_started(monkeypatch):
    def fail(num_threads, **options):
        raise OSError(f"{num_threads} threads cannot be started: no memory")

    monkeypatch.setattr(execution, "create_backend", fail)
    with pytest.raises(ValueError, match=r"^900 threads .*: no memory; set num_threads to less than 900$"):
        start_backend(EngineArgs.create(num_threads=900).execution)
