"""Which backend gets a constraint."""

import subprocess
import sys

import pytest

from pelton.grammar import registry
from pelton.grammar.backend import GrammarBackend, UnsupportedGrammarError
from pelton.grammar.registry import BACKENDS, load_backend, resolve
from pelton.structured_outputs_params import StructuredOutputsParams


def _stand_in(name, *, installed=True, refuses=None):
    class Backend(GrammarBackend):
        @classmethod
        def is_installed(cls):
            return installed

        @classmethod
        def check(cls, params):
            if refuses is not None:
                raise UnsupportedGrammarError(refuses)

        def __init__(self, vocabulary):
            raise AssertionError

        def compile(self, params):
            raise AssertionError

    Backend.name = name
    return Backend


@pytest.fixture
def backends(monkeypatch):
    """Puts stand-ins in the place of the backends, in order of preference."""

    def use(*classes):
        by_name = {backend.name: backend for backend in classes}
        monkeypatch.setattr(registry, "BACKENDS", dict.fromkeys(by_name, ""))
        monkeypatch.setattr(registry, "load_backend", by_name.__getitem__)

    return use


def test_the_backends_are_what_they_are_called():
    for name in BACKENDS:
        assert load_backend(name).name == name
        assert isinstance(load_backend(name).is_installed(), bool)


def test_auto_takes_the_first_that_keeps_it(backends):
    params = StructuredOutputsParams(regex="a")
    backends(_stand_in("llguidance"), _stand_in("xgrammar"))
    assert resolve(params).backend == "llguidance"
    assert params.backend == "auto"
    backends(_stand_in("llguidance", refuses="no"), _stand_in("xgrammar"))
    assert resolve(params).backend == "xgrammar"
    backends(_stand_in("llguidance", installed=False), _stand_in("xgrammar"))
    assert resolve(params).backend == "xgrammar"


def test_what_is_asked_for_is_taken(backends):
    backends(_stand_in("llguidance"), _stand_in("xgrammar"))
    assert resolve(StructuredOutputsParams(regex="a", backend="xgrammar")).backend == "xgrammar"
    backends(_stand_in("llguidance"), _stand_in("xgrammar", refuses="regex: no"))
    with pytest.raises(UnsupportedGrammarError, match=r"^regex: no$"):
        resolve(StructuredOutputsParams(regex="a", backend="xgrammar"))


def test_messages_of_all_that_refuse(backends):
    backends(_stand_in("llguidance", refuses="one"), _stand_in("xgrammar", refuses="two"))
    with pytest.raises(UnsupportedGrammarError, match=r"^one; two$"):
        resolve(StructuredOutputsParams(regex="a"))
    backends(_stand_in("llguidance", refuses="same"), _stand_in("xgrammar", refuses="same"))
    with pytest.raises(UnsupportedGrammarError, match=r"^same$"):
        resolve(StructuredOutputsParams(regex="a"))


def test_not_installed(backends):
    backends(_stand_in("llguidance", installed=False), _stand_in("xgrammar", installed=False))
    with pytest.raises(
        ValueError, match=r"the backend xgrammar is not installed; pip install .pelton.xgrammar.., or leave"
    ):
        resolve(StructuredOutputsParams(regex="a", backend="xgrammar"))
    with pytest.raises(ValueError, match="llguidance or xgrammar is not installed; pip install llguidance"):
        resolve(StructuredOutputsParams(regex="a"))


def test_importing_the_registry_imports_no_backend():
    subprocess.run([sys.executable, "-c", _IMPORTS], check=True)


_IMPORTS = """
import sys
import pelton.grammar.registry
assert not {"llguidance", "xgrammar", "torch"} & sys.modules.keys()
pelton.grammar.registry.load_backend("llguidance").is_installed()
assert "llguidance" not in sys.modules
"""


def test_objects_are_closed_where_that_can_be():
    """Of schemas that hold for the same object each may name what another one does not."""
    closed = {"type": "object", "properties": {"a": {"type": "null"}}}
    assert resolve(StructuredOutputsParams(json=closed)).disable_additional_properties is True
    part = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}
    other = {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]}
    nested = {"allOf": [{"properties": {"p": one}, "required": ["p"], "type": "object"} for one in (part, other)]}
    given = [
        nested,
        {**closed, "required": ["a"], "minProperties": 2},
        {**closed, "allOf": [{"required": ["z"]}]},
        {**closed, "const": {"a": None, "b": 2}},
        {**closed, "if": True, "then": {"required": ["z"]}},
    ]
    for schema in given:
        assert resolve(StructuredOutputsParams(json=schema)).disable_additional_properties is False
        with pytest.raises(UnsupportedGrammarError):
            resolve(StructuredOutputsParams(json=schema, disable_additional_properties=True))
    with pytest.raises(UnsupportedGrammarError, match="uniqueItems"):
        resolve(StructuredOutputsParams(json={"uniqueItems": True}))
