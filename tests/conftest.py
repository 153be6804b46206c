"""Fixtures and settings of all tests."""

import pytest
from hypothesis import settings

# Every run tries the same examples, so a test that fails now and did not before has been broken by a change, not by
# luck. To search among other examples: pytest --hypothesis-profile=default. A first example may load models or fill
# caches, and the machine may be busy: time limits are pytest's business.
settings.register_profile("pelton", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("pelton")


@pytest.fixture(autouse=True)
def strict_invariants(monkeypatch):
    """A broken KV-cache invariant fails the test instead of being recovered from."""
    monkeypatch.setenv("PELTON_STRICT_INVARIANTS", "1")
