"""What holds for every matcher, whatever it follows: rollback, independence, refusals, and no dead ends."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.grammar.backend import CompiledGrammar, GrammarMatcher
from pelton.structured_outputs_params import StructuredOutputsParams
from tests.grammar import grammar_corpus
from tests.grammar.installed_backends import compiled, each_backend
from tests.grammar.random_generation import allowed_tokens, generate, mask_of
from tests.grammar.small_vocabularies import VOCABULARIES, SmallVocabulary

CONSTRAINTS = {
    "regex": {"regex": r"(a|é)*b{1,3}(x[^\"]*y)?"},
    "choice": {"choice": ["yes", "yes!", "no", "日本", "日本語", "😀", "<s>"]},
    "gbnf": {"grammar": 'root ::= "(" root ")" | [a-c]+ | "é" root | ""'},
    "lark": {"grammar": grammar_corpus.LANGUAGES[0].lark},
    "json": {"json": {"type": "object", "properties": {"é": {"type": "integer"}, "b": {"enum": ["x", None]}}}},
    "json_object": {"json_object": True},
}

vocabularies = pytest.mark.parametrize("vocabulary", VOCABULARIES)
constraints = pytest.mark.parametrize("constraint", CONSTRAINTS)


@each_backend
@vocabularies
@constraints
@settings(max_examples=8)
@given(data=st.data())
def test_rollback_leads_back(backend, vocabulary, constraint, data):
    """Also from the end, and again and again: the state is that of a new matcher after the tokens that are left."""
    grammar = _grammar(backend, vocabulary, constraint)
    tokens = VOCABULARIES[vocabulary]
    matcher = grammar.new_matcher()
    token_ids: list[int] = []
    for _ in range(data.draw(st.integers(1, 4))):
        while len(token_ids) < 25 and (allowed := allowed_tokens(matcher, tokens)):
            token_ids.append(data.draw(st.sampled_from(allowed)))
            assert matcher.accept(token_ids[-1])
            if data.draw(st.integers(0, 9)) == 0:
                break
        num_back = data.draw(st.integers(0, len(token_ids)))
        matcher.rollback(num_back)
        del token_ids[len(token_ids) - num_back :]
        _check_same(matcher, _after(grammar, token_ids), tokens)


@each_backend
@vocabularies
@constraints
def test_refused_tokens_leave_everything_as_it_was(backend, vocabulary, constraint):
    grammar = _grammar(backend, vocabulary, constraint)
    tokens = VOCABULARIES[vocabulary]
    for seed in range(3):
        output = generate(grammar, tokens, random.Random(seed), max_tokens=8)
        matcher = grammar.new_matcher()
        for index in range(len(output.token_ids) + 1):
            allowed = set(allowed_tokens(matcher, tokens))
            for token_id in set(range(tokens.vocab_size)) - allowed:
                assert not matcher.accept(token_id)
            _check_same(matcher, _after(grammar, output.token_ids[:index]), tokens)
            if index < len(output.token_ids):
                assert matcher.accept(output.token_ids[index])
        matcher.rollback(len(output.token_ids))
        _check_same(matcher, grammar.new_matcher(), tokens)


@each_backend
@vocabularies
@constraints
def test_matchers_of_one_grammar_know_nothing_of_each_other(backend, vocabulary, constraint):
    grammar = _grammar(backend, vocabulary, constraint)
    tokens = VOCABULARIES[vocabulary]
    outputs = [generate(grammar, tokens, random.Random(seed), max_tokens=12).token_ids for seed in range(4)]
    matchers = [grammar.new_matcher() for _ in outputs]
    for index in range(12):
        for output, matcher in zip(outputs, matchers, strict=True):
            if index < len(output):
                assert matcher.accept(output[index])
        for output, matcher in zip(outputs, matchers, strict=True):
            _check_same(matcher, _after(grammar, output[: index + 1]), tokens)


@each_backend
@vocabularies
@constraints
def test_no_output_ends_in_a_dead_end(backend, vocabulary, constraint):
    grammar = _grammar(backend, vocabulary, constraint)
    for seed in range(40):
        generate(grammar, VOCABULARIES[vocabulary], random.Random(seed), max_tokens=25)


@each_backend
@pytest.mark.parametrize("vocabulary", ["pieces"])
@constraints
def test_every_allowed_token_can_be_accepted_and_equal_tokens_are_equal(backend, vocabulary, constraint):
    grammar = _grammar(backend, vocabulary, constraint)
    tokens = VOCABULARIES[vocabulary]
    special = set(tokens.special_token_ids)
    for seed in range(3):
        output = generate(grammar, tokens, random.Random(seed), max_tokens=6).token_ids
        matcher = _after(grammar, output)
        allowed = set(allowed_tokens(matcher, tokens))
        texts = {tokens.token_bytes[token_id] for token_id in allowed}
        assert allowed == {
            token_id for token_id, text in enumerate(tokens.token_bytes) if text in texts and token_id not in special
        }
        for token_id in allowed:
            assert matcher.accept(token_id)
            matcher.rollback(1)


def _after(grammar: CompiledGrammar, token_ids: list[int]) -> GrammarMatcher:
    matcher = grammar.new_matcher()
    assert all(matcher.accept(token_id) for token_id in token_ids)
    return matcher


def _check_same(one: GrammarMatcher, other: GrammarMatcher, vocabulary: SmallVocabulary) -> None:
    assert one.is_accepting == other.is_accepting
    assert np.array_equal(mask_of(one, vocabulary.vocab_size), mask_of(other, vocabulary.vocab_size))


def _grammar(backend: str, vocabulary: str, constraint: str) -> CompiledGrammar:
    return compiled(backend, StructuredOutputsParams(**CONSTRAINTS[constraint], backend=backend), vocabulary)
