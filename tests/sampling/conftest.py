import pytest

from pelton.ops.backend import Backend
from pelton.ops.interpreter import NumpyBackend
from tests.support.backends import target_of


@pytest.fixture(autouse=True, params=["numpy", "native"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """What the head program runs on. Broken logits, and rows that nobody needs, hold NaN: no backend looks for it."""
    backend = NumpyBackend() if request.param == "numpy" else target_of("native").backend
    monkeypatch.setattr("tests.sampling.helpers.BACKEND", backend)
    return backend
