"""Parts of native/ by themselves, each a program in native/tests: vectors, threads, and how many of them run."""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
COMPILER = os.environ.get("CXX") or shutil.which("c++")
BASE_FLAGS = "-std=c++17 -O2 -ffp-contract=off -fno-math-errno -Wall -Wextra -Werror -Wno-psabi -Wno-ignored-attributes"
NEEDED: dict[str, set[str]] = {
    "portable": set(),
    "avx2": {"avx2", "fma", "f16c", "bmi1", "bmi2"},
    "avx512": {"avx512_bf16", "avx512bw"},
    "amx": {"avx512_bf16", "avx512bw", "amx_bf16", "amx_int8", "amx_tile"},
}
"""Names in /proc/cpuinfo without which a level does not run."""


def processor_flags() -> set[str]:
    path = Path("/proc/cpuinfo")
    found = re.search(r"^flags\s*:(.*)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return set(found[1].split()) if found else set()


def level_flags(level: str) -> list[str]:
    """The instruction-set flags that the build gives a level."""
    lists: dict[str, str] = dict(re.findall(r"set\(FLAGS_(\w+)\s+([^)]*)\)", (NATIVE / "CMakeLists.txt").read_text()))
    flags = lists[level]
    while reference := re.search(r"\$\{FLAGS_(\w+)\}", flags):
        flags = flags.replace(reference[0], lists[reference[1]])
    return flags.replace('""', "").split()


def compile_and_run(level: str, source: str, tmp_path: Path, *more_flags: str, needs: str = "") -> None:
    """Where the processor does not run the level, or the one that it `needs` instead, the source is read only."""
    if level != "portable" and platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip(f"{level} is for x86-64")
    assert COMPILER is not None
    program = str(tmp_path / "program")
    flags = [*BASE_FLAGS.split(), *level_flags(level), f"-I{NATIVE}", f"-DPELTON_LEVEL_{level.upper()}", *more_flags]
    runs = NEEDED[needs or level] <= processor_flags()
    output = ["-o", program] if runs else ["-fsyntax-only"]
    subprocess.run([COMPILER, *flags, str(NATIVE / "tests" / source), *output], check=True)
    if not runs:
        pytest.skip(f"is C++; this processor does not run {level}")
    done = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("level", NEEDED)
def test_vectors(level: str, tmp_path: Path) -> None:
    compile_and_run(level, "vec_test.cpp", tmp_path)


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("level", NEEDED)
def test_probes(level: str, tmp_path: Path) -> None:
    """They do as many products as they say, and read every word."""
    compile_and_run(level, "probes_test.cpp", tmp_path)


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_emulated_probes(tmp_path: Path) -> None:
    compile_and_run("amx", "probes_test.cpp", tmp_path, "-DPELTON_EMULATED_AMX", needs="avx512")


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_attention_by_dot_and_by_fma(tmp_path: Path) -> None:
    compile_and_run("avx512", "attention_test.cpp", tmp_path)


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_matrices(tmp_path: Path) -> None:
    compile_and_run("amx", "matrix_test.cpp", tmp_path)


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_emulated_matrices(tmp_path: Path) -> None:
    """What `make test-amx` takes for AMX has its arithmetic."""
    compile_and_run("amx", "matrix_test.cpp", tmp_path, "-DPELTON_EMULATED_AMX", needs="avx512")


def build_and_run(tmp_path: Path, flags: list[str], sources: list[str], *arguments: str) -> None:
    assert COMPILER is not None
    program = str(tmp_path / "program")
    paths = [str(NATIVE / source) for source in sources]
    subprocess.run([COMPILER, *BASE_FLAGS.split(), *flags, f"-I{NATIVE}", *paths, "-o", program], check=True)
    # Another sanitizer's library, which the tests may run with, does not go together with ThreadSanitizer.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [program, *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("sanitizer", ["", "thread"])
def test_thread_pool(tmp_path: Path, sanitizer: str) -> None:
    flags = ["-pthread", *(["-g", f"-fsanitize={sanitizer}"] if sanitizer else [])]
    sources = ["tests/thread_pool_test.cpp", "runtime/thread_pool.cpp"]
    build_and_run(tmp_path, flags, sources, "300" if sanitizer else "2000")
