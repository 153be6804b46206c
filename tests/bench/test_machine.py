"""What a benchmark says of the machine."""

import json
import os
from pathlib import Path

import pytest

from pelton import __version__
from pelton.bench.machine import cpu_model, describe_machine, last_level_cache_bytes
from tests.support.backends import numpy_backend
from tests.support.native import native_backend, needs_native, usable_levels

X86 = "processor\t: 0\nmodel\t\t: 1\nmodel name\t: A Processor @ 2.00GHz\n\nprocessor\t: 1\nmodel name\t: Another\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n"


def write(root: Path, name: str, content: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def cache(root: Path, cpu: int, index: int, level: int, size: str, shared: str, kind: str = "Unified") -> None:
    values = {"level": f"{level}\n", "size": f"{size}\n", "shared_cpu_list": f"{shared}\n", "type": f"{kind}\n"}
    for name, value in values.items():
        write(root, f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}/{name}", value)


def test_without_a_backend():
    machine = describe_machine()
    assert machine["pelton"] == __version__
    assert 1 <= machine["cores"] <= machine["cpus"] <= os.cpu_count()
    assert 0 < machine["available_memory_bytes"] <= machine["memory_bytes"]
    assert machine["os"]
    assert machine["python"].startswith("3.")
    assert "level" not in machine
    json.dumps(machine)


def test_with_numpy():
    machine = describe_machine(numpy_backend())
    assert machine["kernels"] == numpy_backend().name
    assert "barrier_ns" not in machine


@needs_native
def test_with_native_kernels():
    level = usable_levels()[-1]
    backend = native_backend(level, 2)
    try:
        machine = describe_machine(backend)
    finally:
        backend.close()
    assert (machine["level"], machine["num_threads"]) == (level, 2)
    assert machine["kernels"] == f"cpu {level}, 2 threads"
    assert machine["barrier_ns"] > 0
    json.dumps(machine)


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        (X86, "A Processor @ 2.00GHz"),
        (ARM, None),
        (ARM + "\nHardware\t: BCM2835\nModel\t\t: Some Board Rev 1.1\n", "Some Board Rev 1.1"),
        (ARM + "\nHardware\t: Some SoC\n", "Some SoC"),
        ("", None),
    ],
)
def test_the_processor(tmp_path, cpuinfo, model):
    write(tmp_path, "proc/cpuinfo", cpuinfo)
    assert cpu_model(tmp_path) == model


def test_shared_caches_count_once(tmp_path):
    for cpu in range(4):
        cache(tmp_path, cpu, 0, 1, "32K", str(cpu), "Data")
        cache(tmp_path, cpu, 1, 1, "64K", str(cpu), "Instruction")
        cache(tmp_path, cpu, 2, 2, "512K", str(cpu))
        cache(tmp_path, cpu, 3, 3, "32768K", "0-1" if cpu < 2 else "2-3")
    assert last_level_cache_bytes(tmp_path, range(4)) == 64 * 2**20
    assert last_level_cache_bytes(tmp_path, [0, 1]) == 32 * 2**20


def test_the_last_level_may_be_the_second(tmp_path):
    for cpu in range(2):
        cache(tmp_path, cpu, 0, 1, "32K", str(cpu), "Data")
        cache(tmp_path, cpu, 1, 2, "1024K", "0-1")
    assert last_level_cache_bytes(tmp_path, range(2)) == 2**20


def test_caches_that_are_not_known(tmp_path):
    assert last_level_cache_bytes(tmp_path, range(2)) is None
    cache(tmp_path, 0, 0, 3, "large", "0-1")
    assert last_level_cache_bytes(tmp_path, range(2)) is None
