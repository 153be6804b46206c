"""The native backend itself: levels, errors, one call per step, callbacks, tiles, NaN tracing."""

import ctypes.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from pelton.ops import L, Recorder, Run, T, create_backend, pack_rows
from pelton.ops.backend import Backend
from pelton.ops.cpu import LEVELS, CPUBackend, load_library
from pelton.ops.cpu import library as library_module
from pelton.ops.cpu.library import Library
from pelton.ops.interpreter import NumpyBackend
from pelton.ops.operators import GATED_LINEAR
from pelton.ops.packed_linear import FORMATS, Int4Rows
from tests.support.native import count_calls, native_backend, needs_native, pack_linear, usable_levels

pytestmark = needs_native


@pytest.fixture
def backend():
    backend = native_backend(usable_levels()[-1])
    yield backend
    backend.close()


def normed_twice(backend: Backend, **options):
    """A program with two launches: x [T, 8] -> once, twice."""
    op = Recorder("norms")
    x = op.input("x", (T, 8))
    weight = np.ones(8, np.float32)
    once = op.rms_norm(x, weight, 1e-6, None, "float32")
    twice = op.rms_norm(once, weight * 3, 1e-6, None, "float32")
    return backend.compile(op.finish({"once": once, "twice": twice}), {T: 16}, **options)


def long_run(backend: Backend, size: int, num_launches: int):
    """A program of equal linear layers [size, size], and a run of it with 64 rows of zeros."""
    weight = pack_linear(backend, [np.ones((size, size), np.float32)], None, weight_format="fp32")
    op = Recorder("long")
    value = op.input("x", (T, size))
    for _ in range(num_launches):
        value = op.linear(value, weight, None)
    program = backend.compile(op.finish({"y": value}), {T: 64})
    return program, Run(program, {T: 64}, {"x": np.zeros((64, size), np.float32)})


@pytest.mark.parametrize("level", LEVELS)
def test_forcing_a_level(monkeypatch, level):
    monkeypatch.setenv("PELTON_CPU_ISA", level)
    if level not in usable_levels():
        with pytest.raises(ValueError, match=f"PELTON_CPU_ISA is '{level}', but"):
            create_backend(1)
        return
    backend = create_backend(1)
    assert backend.name == f"cpu {level}, 1 thread"
    backend.close()


def test_only_a_level_that_may_be_used_is_asked_for(monkeypatch):
    """To ask for AMX requests the permission to use it for the whole process."""
    asked = []
    supports = Library.supports
    monkeypatch.setattr(Library, "supports", lambda self, level: asked.append(level) or supports(self, level))
    load_library.cache_clear()
    try:
        assert load_library("portable").level == "portable"
        assert asked == ["portable"]
        assert load_library().level == asked[-1] == usable_levels()[-1], "the best first, and none after it"
    finally:
        load_library.cache_clear()


def test_levels_that_do_not_exist(monkeypatch):
    monkeypatch.setenv("PELTON_CPU_ISA", "avx1024")
    with pytest.raises(ValueError, match="PELTON_CPU_ISA must be one of portable, avx2, avx512, amx or numpy"):
        create_backend(1)


def test_numpy_by_choice_and_for_want_of_libraries(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("PELTON_CPU_ISA", "numpy")
    assert isinstance(create_backend(1), NumpyBackend)
    assert not caplog.records
    monkeypatch.delenv("PELTON_CPU_ISA")
    monkeypatch.delenv("PELTON_NATIVE_LIBRARIES", raising=False)
    monkeypatch.setattr("pelton.ops.cpu.library._FOLDER", tmp_path)
    load_library.cache_clear()
    try:
        assert isinstance(create_backend(1), NumpyBackend)
        assert "apt install g++" in caplog.text
        monkeypatch.setenv("PELTON_CPU_ISA", "portable")
        with pytest.raises(ValueError, match="no native kernels"):
            create_backend(1)
    finally:
        monkeypatch.undo()
        load_library.cache_clear()


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """An empty folder in place of that of the libraries."""
    monkeypatch.setenv("PELTON_NATIVE_LIBRARIES", str(tmp_path))
    monkeypatch.delenv("PELTON_CPU_ISA", raising=False)
    load_library.cache_clear()
    yield tmp_path
    load_library.cache_clear()


def test_a_folder_without_libraries(installed):
    with pytest.raises(ValueError, match=r"PELTON_NATIVE_LIBRARIES is .*, which has no kernel libraries"):
        load_library()


def test_a_file_that_is_no_library(installed):
    (installed / "libpelton_portable.so").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"libpelton_portable.so cannot be loaded \(.*\); install Pelton again$"):
        load_library()


def test_levels_without_the_portable_one(installed):
    (installed / "libpelton_avx2.so").write_bytes(b"nothing")
    message = "has libpelton_avx2.so but no libpelton_portable.so; install Pelton again$"
    with pytest.raises(ValueError, match=message):
        load_library()


def test_a_library_of_another_version(installed, monkeypatch):
    monkeypatch.setattr(library_module, "INTERFACE", library_module.INTERFACE + 1)
    shutil.copy(library_module._FOLDER / "libpelton_portable.so", installed)
    with pytest.raises(ValueError, match=r"libpelton_portable.so is of another version of Pelton; install"):
        load_library()


def test_a_library_of_something_else():
    """It lacks what every version has."""
    path = ctypes.util.find_library("m")
    with pytest.raises(ValueError, match=r"libm.* is of another version of Pelton; install Pelton again$"):
        Library(path, "portable")


def test_programs_of_a_step_are_one_call(monkeypatch, backend):
    first, second = normed_twice(backend), normed_twice(backend)
    x = np.arange(24, dtype=np.float32).reshape(3, 8) + 1
    between = first.outputs({T: 3})["twice"]
    calls = count_calls(monkeypatch)
    backend.run([Run(first, {T: 3}, {"x": x}), Run(second, {T: 3}, {"x": between})])
    assert calls == [2]
    expected = 3 * x / np.sqrt((x * x).mean(axis=1, keepdims=True))
    np.testing.assert_allclose(second.outputs({T: 3})["twice"], expected, rtol=1e-5)


def test_arrays_are_looked_at_again_where_anything_differs(backend):
    """Those of the last run are known; another one, another size, or one of another kind is not."""
    program = normed_twice(backend)
    x = np.arange(24, dtype=np.float32).reshape(3, 8) + 1

    def twice(array, num_rows):
        backend.run([Run(program, {T: num_rows}, {"x": array})])
        return program.outputs({T: num_rows})["twice"].copy()

    expected = twice(x, 3)
    np.testing.assert_array_equal(twice(x, 3), expected)
    np.testing.assert_allclose(twice(x[::-1].copy(), 3), expected[::-1])
    np.testing.assert_array_equal(twice(x[:2], 2), expected[:2])
    x[0] = x[2]
    np.testing.assert_array_equal(twice(x, 3)[0], expected[2])
    for wrong, num_rows in ((x, 2), (x.astype(np.float64), 3), (x[:, ::-1], 3), (x[:, :4], 3)):
        with pytest.raises(ValueError, match="input x must be float32"):
            twice(wrong, num_rows)
    np.testing.assert_array_equal(twice(x, 3)[0], expected[2])
    backend.run([Run(program, {T: 3}, {"x": x}), Run(program, {T: 2}, {"x": x[1:]})])
    np.testing.assert_allclose(program.outputs({T: 2})["twice"], expected[[1, 2]])


def test_eager_is_launch_by_launch_with_the_same_bits(monkeypatch, backend):
    x = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    program = normed_twice(backend)
    backend.run([Run(program, {T: 5}, {"x": x})])
    eager = native_backend(usable_levels()[-1], eager=True)
    eager_program = normed_twice(eager)
    calls = count_calls(monkeypatch)
    eager.run([Run(eager_program, {T: 5}, {"x": x})])
    assert calls == [1, 1]
    for name, output in program.outputs({T: 5}).items():
        assert output.tobytes() == eager_program.outputs({T: 5})[name].tobytes()
    eager.close()


@pytest.mark.parametrize("kind", ["native", "numpy"])
def test_nan_is_traced_to_its_launch(kind):
    backend = NumpyBackend(check_nan=True)
    if kind == "native":
        backend = native_backend(usable_levels()[-1], eager=True, check_nan=True)
    program = normed_twice(backend)
    x = np.ones((5, 8), np.float32)
    backend.run([Run(program, {T: 5}, {"x": x})])
    x[3, 2] = np.nan
    with pytest.raises(FloatingPointError, match=r"normed\[T, 8\] is NaN at \[3, 0\]") as info:
        backend.run([Run(program, {T: 5}, {"x": x})])
    assert info.value.__notes__ == [f"in norms, launch 0: {program.program.launches[0]}"]
    backend.close()


@pytest.mark.parametrize("num_rows", [0, 1, 3, 4, 5, 11])
@pytest.mark.parametrize("kind", ["native", "numpy"])
def test_tiles(monkeypatch, backend, kind, num_rows):
    """Rows in tiles of four, with a callback in the middle: as if all were computed at once."""
    backend = backend if kind == "native" else NumpyBackend()
    seen = []

    class Hook:
        def apply(self, logits, edit_index):
            seen.append(edit_index.tolist())
            for row, index in zip(logits, edit_index, strict=True):
                if index >= 0:
                    row += 100 * index

    op = Recorder("tiled")
    logits = op.input("logits", (L, 6))
    edit_index = op.input("edit_index", (L,), "int32")
    rows = op.input("rows", (L,), "int32")
    gathered = op.gather_rows(logits, rows)
    processed = op.process_logits(gathered, edit_index, Hook())
    normed = op.rms_norm(processed, np.ones(6, np.float32), 1e-6, None, "float32")
    program = backend.compile(op.finish({"normed": normed, "processed": processed}), {L: 12}, (L, 4))
    rng = np.random.default_rng(1)
    x = rng.standard_normal((num_rows, 6)).astype(np.float32)
    inputs = {
        "logits": x,
        "edit_index": np.arange(num_rows, dtype=np.int32),
        # Within the tile: a value with this dimension is sliced for the launches.
        "rows": np.arange(num_rows, dtype=np.int32) % 4,
    }
    calls = count_calls(monkeypatch)
    backend.run([Run(program, {L: num_rows}, inputs)])
    assert [index for tile in seen for index in tile] == list(range(num_rows))
    if kind == "native":
        assert len(calls) == max(1, -(-num_rows // 4)) + 1
    outputs = program.outputs({L: num_rows})
    expected = x + 100 * np.arange(num_rows, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(outputs["processed"], expected)
    root = np.sqrt((expected**2).mean(axis=1, keepdims=True))
    np.testing.assert_allclose(outputs["normed"], expected / root, rtol=1e-5)


def test_wrong_inputs(backend):
    program = normed_twice(backend)
    good = np.ones((3, 8), np.float32)
    for inputs, message in [
        ({}, "takes"),
        ({"x": good[:2]}, r"must be float32 \[3, 8\]"),
        ({"x": good.astype(np.float64)}, "got float64"),
        ({"x": np.ones((3, 16), np.float32)[:, ::2]}, "in C order"),
    ]:
        with pytest.raises(ValueError, match=message):
            backend.run([Run(program, {T: 3}, inputs)])
    with pytest.raises(ValueError, match="is not within 0 and 16"):
        backend.run([Run(program, {T: 17}, {"x": good})])


def test_a_kernel_that_refuses_ends_the_run_for_all_threads(backend):
    """An id outside the vocabulary: an error, and the pool lives on."""
    op = Recorder("embedding")
    token_ids = op.input("token_ids", (T,), "int32")
    table = pack_linear(backend, [np.ones((5, 8), np.float32)], None, weight_format="fp32")
    program = backend.compile(op.finish({"x": op.embed(token_ids, table, 1.0)}), {T: 64})
    for _ in range(20):
        with pytest.raises(RuntimeError, match="embed: a token id is outside"):
            backend.run([Run(program, {T: 64}, {"token_ids": np.full(64, 5, np.int32)})])
        backend.run([Run(program, {T: 64}, {"token_ids": np.full(64, 4, np.int32)})])
    assert (program.outputs({T: 64})["x"] == 1.0).all()


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("lengths", [(60, 60), (120,), (50, 70), (70, 50), (1, 59, 60), (30, 30, 30, 30), (0, 119, 1)])
def test_parts_of_a_gated_weight(backend, weight_format, lengths):
    """However its rows are divided, the first half of them is the gate's."""
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((120, 70)).astype(np.float32)
    bias = rng.standard_normal(120).astype(np.float32)
    parts = np.split(whole, np.cumsum(lengths)[:-1])
    expected = pack_linear(backend, np.split(whole, 2), bias, weight_format=weight_format, gated=True)
    packed = pack_linear(backend, parts, bias, weight_format=weight_format, gated=True)
    assert packed.array.tobytes() == expected.array.tobytes()
    reference = pack_rows(parts, bias, weight_format=weight_format, gated=True)
    op = Recorder("gated")
    x = op.input("x", (T, 70), packed.input_dtype)
    program = backend.compile(op.finish({"y": op.gated_linear(x, packed, "silu")}), {T: 3})
    array = rng.standard_normal((3, 70)).astype(packed.input_dtype)
    backend.run([Run(program, {T: 3}, {"x": array})])
    y = np.empty((3, 60), packed.input_dtype)
    GATED_LINEAR.reference(array, reference, "silu", y)
    actual = program.outputs({T: 3})["y"].astype(np.float32)
    np.testing.assert_allclose(actual, y.astype(np.float32), rtol=1e-2, atol=1e-5)


def table_of(backend, weight):
    """The rows of a packed weight [V, K], by looking all of them up."""
    op = Recorder("table")
    token_ids = op.input("token_ids", (T,), "int32")
    program = backend.compile(op.finish({"x": op.embed(token_ids, weight, 1.0)}), {T: weight.num_rows})
    ids = np.arange(weight.num_rows, dtype=np.int32)
    backend.run([Run(program, {T: len(ids)}, {"token_ids": ids})])
    return program.output("x", {T: len(ids)}).copy()


@pytest.mark.parametrize("level", usable_levels())
@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("shape", [(1, 1), (47, 31), (49, 33), (100, 200), (200, 600)])
def test_packed_numbers_are_the_references(level, weight_format, shape):
    """To the bit, in weights of many sizes, with groups of zeros, of equal numbers, and of large and small ones."""
    backend = native_backend(level)
    rows = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    rows[0, ::2] = 0.0
    rows[len(rows) // 2] = 0.0
    rows[len(rows) // 3, :40] = 0.1
    rows[-1] *= 1e-7
    rows[len(rows) // 4] *= 1e4
    rows[:, -1] = -3.0
    packed = pack_linear(backend, [rows], None, weight_format=weight_format)
    expected = pack_rows([rows], weight_format=weight_format).widened()
    assert np.array_equal(table_of(backend, packed), expected)
    backend.close()


def test_rows_in_four_bits(backend):
    """They are kept; beside others, and in any order."""
    rng = np.random.default_rng(2)
    groups = rng.standard_normal((2, 130, 4)).astype(np.float16)
    half = Int4Rows(rng.integers(0, 16, (130, 100), np.uint8), *groups)
    floats = rng.standard_normal((70, 100)).astype(np.float32)
    packer = backend.linear_packer(200, 100, weight_format="int4", gated=True)
    packer.add(130, floats)
    packer.add(7, half[7:])
    packer.add(0, half[:7])
    packed = packer.finish(None)
    whole = pack_linear(backend, [half, floats], None, weight_format="int4", gated=True)
    assert packed.array.tobytes() == whole.array.tobytes()
    separate = pack_linear(backend, [half], None, weight_format="int4")
    assert np.array_equal(table_of(backend, separate), half.widened())
    with pytest.raises(AssertionError, match="are for int4, not int8"):
        pack_linear(backend, [half], None, weight_format="int8")


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 3e6, -70000.0])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (210, 99)])
def test_numbers_that_a_format_cannot_hold(backend, number, row, column):
    rows = np.ones((211, 100), np.float32)
    rows[row, column] = number
    with pytest.raises(ValueError, match="too large for the float16 scales of int4; set quantization to int8"):
        pack_linear(backend, [rows], None, weight_format="int4")
    if np.isfinite(number):
        pack_linear(backend, [rows], None, weight_format="int8")
    else:
        with pytest.raises(ValueError, match="not finite, which int8 cannot hold; set quantization to none"):
            pack_linear(backend, [rows], None, weight_format="int8")
    pack_linear(backend, [rows], None, weight_format="bf16")
    broken = Int4Rows(np.ones((3, 32), np.uint8), *np.full((2, 3, 1), np.inf, np.float16))
    with pytest.raises(ValueError, match="too large for the float16"):
        pack_linear(backend, [broken], None, weight_format="int4")


def test_weights_of_another_backend_are_refused(backend):
    op = Recorder("linear")
    x = op.input("x", (T, 8))
    y = op.linear(x, pack_rows([np.ones((5, 8), np.float32)], None, weight_format="fp32"), None)
    with pytest.raises(AssertionError, match="packed for another backend"):
        backend.compile(op.finish({"y": y}), {T: 4})


def test_close(backend):
    program = normed_twice(backend)
    backend.close()
    backend.close()
    with pytest.raises(AssertionError, match="closed"):
        backend.run([Run(program, {T: 1}, {"x": np.ones((1, 8), np.float32)})])


def test_one_call_at_a_time(backend):
    """While a native call is under way, every other one is refused, and harms nothing."""
    program, run = long_run(backend, 2048, 40)
    thread = threading.Thread(target=backend.run, args=[[run]])
    thread.start()
    refused = 0
    calls = [
        lambda: backend.run([run]),
        lambda: pack_linear(backend, [np.ones((5, 8), np.float32)], None, weight_format="fp32"),
        backend.barrier_ns,
        backend.close,
    ]
    time.sleep(0.02)
    for call in calls:
        if not thread.is_alive():
            break
        with pytest.raises(RuntimeError, match="busy: a backend takes one call at a time"):
            call()
        refused += 1
    thread.join()
    assert refused >= 2
    backend.run([run])
    assert (program.output("y", {T: 64}) == 0.0).all()


def test_another_thread_is_refused_during_a_callback(backend):
    """No native call is under way then, but the step is; a callback itself may come back, to another program."""
    other = normed_twice(backend)
    x = np.arange(8, dtype=np.float32)[None] + 1
    errors = []

    def run_other():
        try:
            backend.run([Run(other, {T: 1}, {"x": x})])
        except RuntimeError as error:
            errors.append(str(error))

    class Hook:
        def apply(self, logits, edit_index):
            thread = threading.Thread(target=run_other)
            thread.start()
            thread.join()
            run_other()
            logits += 1

    op = Recorder("hooked")
    logits, edit_index = op.input("logits", (L, 6)), op.input("edit_index", (L,), "int32")
    rows = op.input("rows", (L,), "int32")
    processed = op.process_logits(op.gather_rows(logits, rows), edit_index, Hook())
    program = backend.compile(op.finish({"processed": op.rms_norm(processed, np.ones(6, np.float32), 0.0)}), {L: 2})
    inputs = {"logits": np.zeros((2, 6), np.float32)}
    inputs |= {"edit_index": np.zeros(2, np.int32), "rows": np.arange(2, dtype=np.int32)}
    backend.run([Run(program, {L: 2}, inputs)])
    assert errors == ["busy: a backend takes one call at a time"]
    np.testing.assert_allclose(program.outputs({L: 2})["processed"], 1.0)
    assert np.isfinite(other.outputs({T: 1})["twice"]).all()


LITTLE_MEMORY = """
import resource
from pelton.ops.cpu import CPUBackend, load_library

library = load_library("portable")
resource.setrlimit(resource.RLIMIT_AS, (3 * 10**9, 3 * 10**9))
try:
    CPUBackend(library, 1000)
except OSError as error:
    print(error)
"""


def test_more_threads_than_there_is_memory_for():
    done = subprocess.run([sys.executable, "-c", LITTLE_MEMORY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1000 threads cannot be started: ")


@pytest.mark.parametrize("num_bytes", [0, 1000, 2**25, 2**25 + 5])
def test_zeros(backend, num_bytes):
    """Small and large: zeroed, and writable to the end."""
    array = backend.zeros(num_bytes)
    assert array.shape == (num_bytes,)
    assert not array.any()
    array[...] = 1


@pytest.mark.parametrize("num_bytes", [2**60, 2**80])
def test_more_memory_than_there_is(backend, num_bytes):
    with pytest.raises(MemoryError, match=r"Unable to allocate .* GiB"):
        backend.zeros(num_bytes)


def test_many_short_runs_with_more_threads_than_cores():
    """Barriers and sleeping threads under contention: thousands of runs end, and give what they should."""
    backend = native_backend(usable_levels()[-1], 7)
    program = normed_twice(backend)
    x = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    backend.run([Run(program, {T: 16}, {"x": x})])
    expected = program.outputs({T: 16})["twice"].tobytes()
    for i in range(1500):
        if i % 500 == 499:
            time.sleep(0.01)  # long enough for threads to fall asleep
        backend.run([Run(program, {T: 16}, {"x": x})])
        assert program.outputs({T: 16})["twice"].tobytes() == expected
    backend.close()


def test_a_forked_process_lets_go(backend):
    """It has no threads of its own: it is told so, and ends without waiting for those of its parent."""
    program = normed_twice(backend)
    x = np.ones((1, 8), np.float32)
    backend.run([Run(program, {T: 1}, {"x": x})])
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        status = 1
        try:
            backend.run([Run(program, {T: 1}, {"x": x})])
        except RuntimeError as error:
            status = 0 if "forked" in str(error) else 2
        backend.close()
        os._exit(status)
    for _ in range(200):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the forked process hangs")
    assert os.waitstatus_to_exitcode(status) == 0
    backend.run([Run(program, {T: 1}, {"x": x})])


def test_idle_threads_use_no_processor_time(backend):
    program = normed_twice(backend)
    backend.run([Run(program, {T: 1}, {"x": np.ones((1, 8), np.float32)})])
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - before < 0.01


def test_the_interpreter_is_free_during_a_run(backend):
    """A native call leaves Python to other threads."""
    _, run = long_run(backend, 4096, 4)
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    backend.run([run])
    end = time.perf_counter()
    done.set()
    thread.join()
    assert sum(start < t < end for t in ticks) >= 2, f"{end - start} s"


def test_backends_name_themselves(backend):
    assert isinstance(backend, CPUBackend)
    assert backend.name == f"cpu {usable_levels()[-1]}, 2 threads"
    assert 0 < backend.barrier_ns() < 1e8
