"""Fixtures of the tests with a real model, and fewer of these tests where they take long."""

import gc
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from tests.support.native import is_slow_machine

FEWER_WHERE_SLOW = {
    "test_architectures.py",
    "test_bits.py",
    "test_one_answer.py",
    "test_quantized.py",
    "test_sliding_window.py",
}
"""Of each test in them, every second case is for slow runs there."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    if not is_slow_machine():
        return
    number_of: Counter[str] = Counter()
    for item in items:
        if item.path.name in FEWER_WHERE_SLOW:
            test = item.nodeid.partition("[")[0]
            number_of[test] += 1
            if number_of[test] % 2 == 0:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def free_models() -> Iterator[None]:
    """Test doubles hold on to their engine in circles; a few such engines would fill the memory."""
    yield
    gc.collect()
