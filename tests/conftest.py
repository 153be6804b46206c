"""Fixtures of all tests."""

import pytest


@pytest.fixture(autouse=True)
def strict_invariants(monkeypatch):
    """A broken KV-cache invariant fails the test instead of being recovered from."""
    monkeypatch.setenv("PELTON_STRICT_INVARIANTS", "1")
