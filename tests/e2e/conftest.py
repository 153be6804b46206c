"""Fixtures of the tests with a real model."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def free_models() -> Iterator[None]:
    """Test doubles hold on to their engine in circles; a few such engines would fill the memory."""
    yield
    gc.collect()
