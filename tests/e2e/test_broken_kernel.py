"""The comparison of bits can fail: a kernel that rounds single rows in another way is found."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.native import needs_native

REPOSITORY = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX") or shutil.which("c++")
FLAGS = [
    "-std=c++17",
    "-O2",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wno-psabi",
    "-fPIC",
    "-shared",
    "-DPELTON_LEVEL_PORTABLE",
]
RIGHT = "sum[row][i] = Format::multiply_add(sum[row][i], x_row, weights[i]);"
ROUNDED_TWICE = "sum[row][i] = Format::multiply_add(zero(), x_row, weights[i]) + sum[row][i];"
WRONG = f"if (kRows == 1) {ROUNDED_TWICE} else {RIGHT}"
"""In native/ops/formats.h. With bfloat16 weights a step adds two products: adding the sum last rounds otherwise."""

pytestmark = [needs_native, pytest.mark.slow, pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")]


@pytest.mark.parametrize(("replacement", "is_found"), [(RIGHT, False), (WRONG, True)], ids=["right", "wrong"])
def test_a_broken_kernel_is_found(tmp_path, replacement, is_found):
    assert COMPILER is not None
    sources = tmp_path / "native"
    shutil.copytree(REPOSITORY / "native", sources)
    formats = sources / "ops" / "formats.h"
    text = formats.read_text()
    assert text.count(RIGHT) == 1
    formats.write_text(text.replace(RIGHT, replacement))
    files = [str(path) for folder in ("runtime", "ops") for path in (sources / folder).glob("*.cpp")]
    library = tmp_path / "libpelton_portable.so"
    subprocess.run([COMPILER, *FLAGS, f"-I{sources}", *files, "-o", str(library), "-lpthread"], check=True)
    test = "tests/e2e/test_bits.py::test_together[portable-bfloat16]"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "280", test],
        cwd=REPOSITORY,
        env=os.environ | {"PELTON_NATIVE_LIBRARIES": str(tmp_path), "PELTON_CPU_ISA": "portable"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if is_found else 0), done.stdout
    assert ("AssertionError: requests [" in done.stdout) == is_found, done.stdout
