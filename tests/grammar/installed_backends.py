"""The backends that can be tested here, and grammars compiled by them."""

from functools import cache

import pytest

from pelton.grammar.backend import CompiledGrammar, GrammarBackend, UnsupportedGrammarError
from pelton.grammar.registry import BACKENDS, load_backend
from pelton.structured_outputs_params import StructuredOutputsParams
from tests.grammar.small_vocabularies import VOCABULARIES

INSTALLED = [name for name in BACKENDS if load_backend(name).is_installed()]

each_backend = pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=pytest.mark.slow if index else ()) for index, name in enumerate(INSTALLED)]
)
"""The preferred one always, others only in the exhaustive tests."""


def compiled(backend: str, params: StructuredOutputsParams, vocabulary: str = "pieces") -> CompiledGrammar:
    """Checks and compiles a constraint. The test is skipped if the backend refuses it while another one is preferred,
    which must not refuse it."""
    grammar_backend = _backend(backend, vocabulary)
    try:
        grammar_backend.check(params)
        return grammar_backend.compile(params)
    except UnsupportedGrammarError as error:
        if backend != next(iter(BACKENDS)):
            pytest.skip(f"{backend} refuses it: {error}")
        raise


def compiled_or_refused(backend: str, params: StructuredOutputsParams) -> CompiledGrammar | UnsupportedGrammarError:
    """The grammar, or why there is none."""
    try:
        load_backend(backend).check(params)
        return _backend(backend, "pieces").compile(params)
    except UnsupportedGrammarError as error:
        return error


@cache
def _backend(name: str, vocabulary: str) -> GrammarBackend:
    return load_backend(name)(VOCABULARIES[vocabulary])
