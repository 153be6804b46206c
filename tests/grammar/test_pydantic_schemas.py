"""Schemas that pydantic makes: what is written under them the class reads, and its instances pass."""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from pelton.grammar.backend import GrammarVocabulary
from pelton.grammar.registry import load_backend
from tests.grammar.installed_backends import INSTALLED
from tests.grammar.json_suite import Case, Examiner, Instance
from tests.grammar.pydantic_models import TYPES, Typed
from tests.grammar.random_outputs import TokenizerVocabulary
from tests.grammar.small_vocabularies import PIECES
from tests.support.fake_async_llm import smollm2_tokenizer

each_backend = pytest.mark.parametrize("backend", INSTALLED)

REFUSED = {"llguidance": {"Sets"}, "xgrammar": {"Sets"}}  # uniqueItems


def case_of(typed: Typed) -> Case:
    adapter: TypeAdapter[Any] = TypeAdapter(typed.type)
    schema = adapter.json_schema()
    name = schema.get("title", str(typed.type))
    # As they are given, and as pydantic writes them, with the defaults.
    written = [json.loads(adapter.dump_json(adapter.validate_python(value), by_alias=True)) for value in typed.data]
    instances = tuple(Instance(f"{name}: {value}", value, is_valid=True) for value in (*typed.data, *written))
    return Case("pydantic", name, schema, instances, None if typed.is_wider_in_json else adapter.validate_json)


def check(backend: str, vocabulary: GrammarVocabulary, num_outputs: int) -> None:
    findings = Examiner(load_backend(backend), vocabulary).examine(map(case_of, TYPES), num_outputs=num_outputs)
    assert findings.refused.keys() == REFUSED[backend], findings.refused
    # pydantic writes characters as they are, and backends need not take their escapes.
    assert not [name for name in findings.not_passed if not name.endswith("[escaped]")]
    assert not findings.invalid
    assert not findings.not_complete
    assert findings.endings.total() == num_outputs * (len(TYPES) - len(findings.refused))


@each_backend
def test_small_vocabulary(backend: str) -> None:
    check(backend, PIECES, num_outputs=5)


@pytest.mark.slow
@each_backend
def test_real_vocabulary(backend: str) -> None:
    check(backend, TokenizerVocabulary(smollm2_tokenizer()), num_outputs=100)
