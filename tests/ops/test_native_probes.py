"""What the machine can do at best, as the native libraries measure it."""

import threading
import time

import pytest

from pelton.ops.cpu.library import FORMAT_NUMBERS, READ_BLOCK
from tests.support.native import native_backend, needs_native, usable_levels

pytestmark = needs_native


@pytest.fixture(scope="module", params=[(level, n) for level in usable_levels() for n in (1, 3)], ids=str)
def backend(request):
    backend = native_backend(*request.param)
    yield backend
    backend.close()


@pytest.mark.parametrize("weight_format", FORMAT_NUMBERS)
def test_products(backend, weight_format):
    assert 1e6 < backend.multiply_rate(weight_format, 0.001) < 1e15


@pytest.mark.parametrize("num_bytes", [0, 1, READ_BLOCK, 2 * READ_BLOCK, 5 * READ_BLOCK + 1, 2**22])
def test_reading(backend, num_bytes):
    """However few bytes there are for each thread."""
    rate = backend.read_rate(num_bytes, 0.001)
    assert 1e6 < rate < 1e15 if num_bytes else rate == 0.0


def test_so_long(backend):
    for measure in (lambda: backend.multiply_rate("fp32", 0.05), lambda: backend.read_rate(2**16, 0.05)):
        start = time.perf_counter()
        measure()
        assert time.perf_counter() - start >= 0.05


def test_one_call_at_a_time(backend):
    thread = threading.Thread(target=backend.multiply_rate, args=["fp32", 0.5])
    thread.start()
    time.sleep(0.05)
    for call in (lambda: backend.multiply_rate("fp32", 0.001), lambda: backend.read_rate(2**16, 0.001)):
        if thread.is_alive():
            with pytest.raises(RuntimeError, match="busy: a backend takes one call at a time"):
                call()
    thread.join()
    assert backend.multiply_rate("fp32", 0.001) > 0
