"""What counts as the machine's best."""

import pytest

from pelton.bench import ceilings as module
from pelton.bench.ceilings import Ceilings, text
from pelton.ops.cpu import CPUBackend
from tests.support.backends import numpy_backend
from tests.support.native import native_backend, needs_native, usable_levels

MIB = 2**20


class Machine(CPUBackend):
    """Reads what fits its cache fast, and is faster with every round, but for the last."""

    def __init__(self, cache):
        self.cache = cache
        self.round = 0
        self.sizes = set()

    def multiply_rate(self, weight_format, seconds):
        if weight_format == "fp32":
            self.round += 1
        return {"fp32": 1e9, "bf16": 2e9, "int8": 4e9, "int4": 8e9}[weight_format] * self.speed

    def read_rate(self, num_bytes, seconds):
        self.sizes.add(num_bytes)
        return (4e9 if num_bytes <= self.cache else 1e9) * self.speed

    @property
    def speed(self):
        return {1: 1.0, 2: 3.0, 3: 2.0}[self.round]


@pytest.fixture
def measured(monkeypatch):
    def measured(sizes=(), *, cache=128 * MIB, known=True, memory=64 * 2**30):
        monkeypatch.setattr(module, "last_level_cache_bytes", lambda: cache if known else None)
        monkeypatch.setattr(module, "available_memory", lambda: memory)
        ceilings = Ceilings(Machine(cache), sizes)
        for _ in range(3):
            ceilings.measure(0.01)
        return ceilings

    return measured


def test_the_best_round_counts(measured):
    ceilings = measured()
    assert [ceilings.products(name) for name in ("fp32", "bf16", "int8", "int4")] == [3e9, 6e9, 12e9, 24e9]
    assert ceilings.reading(2**40) == 3e9
    report = ceilings.report()
    assert (report["memory_gb_per_s"], report["median_memory_gb_per_s"]) == (3.0, 2.0)
    assert (report["cache_gb_per_s"], report["median_cache_gb_per_s"]) == (12.0, 8.0)
    assert report["gflop_per_s"] == {"fp32": 3.0, "bf16": 6.0, "int8": 12.0, "int4": 24.0}
    assert report["median_gflop_per_s"]["int4"] == 16.0
    lines = "\n".join(text(report))
    assert "Memory: 3.0 GB/s (median 2.0); last-level cache (128 MiB): 12.0 GB/s (median 8.0)" in lines
    assert "int4 24 (median 16)" in lines


def test_attention_is_multiplied_in_the_faster_way(measured):
    assert measured().attention("bfloat16") == 6e9
    assert measured().attention("float32") == 3e9


def test_sizes_near_the_cache_are_measured_as_they_are(measured):
    ceilings = measured([100 * MIB, 200 * MIB, 512 * MIB, 900 * MIB])
    assert ceilings._backend.sizes == {64 * MIB, 100 * MIB, 200 * MIB, 512 * MIB}
    assert ceilings.reading(100 * MIB) == 12e9
    assert ceilings.reading(200 * MIB) == ceilings.reading(900 * MIB) == 3e9
    sizes = (100 * MIB, 128 * MIB, 200 * MIB, 512 * MIB, 900 * MIB)
    places = ["cache", "cache", "cache and memory", "memory", "memory"]
    assert [ceilings.place(size) for size in sizes] == places


def test_an_unknown_cache(measured):
    ceilings = measured([MIB], known=False)
    assert ceilings.memory_size == 1024 * MIB
    assert ceilings.place(MIB) == "cache and memory"
    assert ceilings.report()["cache_gb_per_s"] is None
    assert "last-level" not in text(ceilings.report())[0]


def test_little_memory(measured):
    assert measured(memory=100 * MIB).memory_size == 50 * MIB


def test_numpy_has_no_ceilings():
    with pytest.raises(ValueError, match=r"numpy computes here.*leave out PELTON_CPU_ISA=numpy.*apt install g\+\+"):
        Ceilings(numpy_backend())


@needs_native
def test_this_machine(monkeypatch):
    monkeypatch.setattr(module, "_MEMORY_BYTES", 8 * MIB)
    monkeypatch.setattr(module, "last_level_cache_bytes", lambda: 2 * MIB)
    backend = native_backend(usable_levels()[-1], 2)
    try:
        ceilings = Ceilings(backend, [3 * MIB])
        ceilings.measure(0.002)
        ceilings.measure(0.002)
    finally:
        backend.close()
    report = ceilings.report()
    assert report["memory_gb_per_s"] >= report["median_memory_gb_per_s"] > 0
    assert report["cache_gb_per_s"] > 0
    assert all(rate > 0 for rate in report["gflop_per_s"].values())
    assert ceilings.reading(3 * MIB) > 0
