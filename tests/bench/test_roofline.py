"""Predictions, and measurements of a small model."""

import json

import pytest

from pelton.bench import ceilings as ceilings_module
from pelton.bench.model_cost import ModelCost
from pelton.bench.plots import write_roofline_plot
from pelton.bench.roofline import predict, run_roofline, text
from pelton.bench.roofline_config import RooflineConfig
from pelton.config import EngineArgs
from tests.support.native import needs_native
from tests.support.tiny_llama import tiny_llama


class Known:
    """Ceilings that are known: bytes are read at 1 GB/s, but at 4 GB/s while they fit a cache of 2 MB."""

    def products(self, weight_format):
        return {"int8": 4e9, "bf16": 2e9}[weight_format]

    def attention(self, cache_dtype):
        return {"bfloat16": 2e9, "float32": 1e9}[cache_dtype]

    def reading(self, num_bytes):
        return 4e9 if num_bytes <= 2e6 else 1e9

    def place(self, num_bytes):
        return "cache" if num_bytes <= 2e6 else "memory"


COST = ModelCost(
    context=100,
    weight_bytes={"int8": 800_000, "bf16": 200_000},
    kv_cache_dtype="bfloat16",
    kv_bytes=100_000,
    product_flop={"int8": 400_000, "bf16": 100_000},
    attention_flop=100_000,
)


def test_predictions():
    """A token takes 100 us of int8, 50 us of bf16 and 50 us of attention."""
    report = predict(COST, Known(), {1: [0.001, 0.0005, 0.002], 4: [0.002], 20: [0.005]})
    one, four, twenty = report["rows"]
    assert (one["measured_ms"], one["best_ms"], one["steps"], one["tokens_per_s"]) == (1.0, 0.5, 3, 1000.0)
    assert (one["bytes"], one["read_from"], one["read_gb_per_s"]) == (1_100_000, "cache", 4.0)
    assert (one["memory_ms"], one["compute_ms"], one["predicted_ms"]) == (0.275, 0.2, 0.275)
    assert (one["bound"], one["fraction"]) == ("memory", 0.275)
    assert (four["memory_ms"], four["compute_ms"], four["predicted_ms"]) == (0.35, 0.8, 0.8)
    assert (four["bound"], four["fraction"]) == ("compute", 0.4)
    assert (twenty["read_from"], twenty["memory_ms"], twenty["compute_ms"]) == ("memory", 3.0, 4.0)
    assert report["b_sat"] == 1.2  # 250 us of reading at 200 us a token
    assert report["knee"] == 4.0  # a step of 20 takes as long as 5 steps of one
    assert report["weights"] == {"bytes": 1_000_000, "formats": {"int8": 800_000, "bf16": 200_000}}
    assert report["flop_per_token"] == {"int8": 400_000, "bf16": 100_000, "attention": 100_000}
    assert (report["context"], report["kv_bytes_per_request"]) == (100, 100_000)


def test_a_single_batch_size_has_no_knee():
    assert predict(COST, Known(), {8: [0.01]})["knee"] is None


@pytest.fixture(scope="module")
def report():
    """Of a machine with small caches, so that it takes little time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ceilings_module, "_MEMORY_BYTES", 2**23)
        patch.setattr(ceilings_module, "last_level_cache_bytes", lambda: 2**21)
        config = RooflineConfig(batch_sizes=(4, 1), context=40, seconds=0.01)
        return run_roofline(config, EngineArgs.create(model=tiny_llama(), num_threads=1, dtype="bfloat16"))


@needs_native
def test_a_report(report):
    assert json.loads(json.dumps(report, allow_nan=False))["benchmark"] == "roofline"
    assert report["machine"]["num_threads"] == 1
    assert report["model"] == tiny_llama()
    assert report["settings"] == {"batch_sizes": (4, 1), "context": 40, "seconds": 0.01}
    assert report["engine_args"]["dtype"] == "bfloat16"
    assert [row["batch_size"] for row in report["rows"]] == [1, 4]
    assert report["kv_bytes_per_request"] == 2 * 2 * 2 * 8 * 41
    assert report["weights"]["formats"].keys() == {"bf16"}
    for row in report["rows"]:
        assert row["steps"] >= 5
        assert 0 < row["best_ms"] <= row["measured_ms"]
        assert row["predicted_ms"] == max(row["memory_ms"], row["compute_ms"]) > 0
        assert row["fraction"] > 0
    assert report["b_sat"] > 0
    assert report["knee"] > 0


@needs_native
def test_the_report_for_people(report):
    lines = text(report).splitlines()
    table = lines[lines.index("") + 1 :]
    assert table[0].split()[:3] == ["batch", "tokens/s", "measured"]
    assert [line.split()[0] for line in table[1:3]] == ["1", "4"]
    assert "(B_sat); measured knee: " in text(report)
    assert "A step cannot be faster" not in text(report | {"rows": [row | {"fraction": 1.0} for row in report["rows"]]})
    assert "A step cannot be faster" in text(report | {"rows": [row | {"fraction": 1.1} for row in report["rows"]]})


@needs_native
def test_a_plot(report, tmp_path):
    write_roofline_plot(tmp_path / "roofline.html", report)
    assert "B_sat" in (tmp_path / "roofline.html").read_text()


def test_without_native_kernels(monkeypatch):
    """Before a model is looked for."""
    monkeypatch.setenv("PELTON_CPU_ISA", "numpy")
    with pytest.raises(ValueError, match="no ceilings to measure"):
        run_roofline(RooflineConfig(), EngineArgs.create(model="/no/such/model"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_sizes": ()}, "batch_sizes must have at least one number"),
        ({"batch_sizes": (1, 0)}, "batch_sizes must be at least 1, got 0"),
        ({"batch_sizes": (2, 1, 2)}, "batch_sizes must differ from each other, got 2, 1, 2"),
        ({"context": -1}, "context must be at least 0, got -1"),
        ({"seconds": 0.0}, r"seconds must be positive and finite, got 0\.0"),
        ({"seconds": float("nan")}, "seconds must be positive and finite, got nan"),
    ],
)
def test_what_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        RooflineConfig(**values)
