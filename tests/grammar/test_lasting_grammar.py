"""What one output fills costs no other output of the same grammar anything."""

import random

import pytest

from pelton.grammar import lasting_grammar, llguidance_backend
from pelton.grammar.lasting_grammar import LastingGrammar
from pelton.grammar.llguidance_backend import LLGuidanceBackend
from pelton.structured_outputs_params import StructuredOutputsParams
from tests.grammar.random_generation import allowed_tokens
from tests.grammar.small_vocabularies import BYTES

PARAMS = StructuredOutputsParams(regex=".*a.{30}")
"""Each output has states of its own, which all outputs share."""
LETTERS = BYTES.encode("ab")


@pytest.fixture
def grammar(monkeypatch):
    monkeypatch.setattr(llguidance_backend, "MAX_LEXER_STATES", 3000)
    monkeypatch.setattr(lasting_grammar, "MAX_SECONDS", 1000.0)
    backend = LLGuidanceBackend(BYTES)
    return LastingGrammar(lambda: backend.compile(PARAMS))


def compilations(grammar):
    return [copy.grammar for copy in grammar._copies]


def write(matcher, number, seed=0):
    rng = random.Random(seed)
    for _ in range(number):
        allowed = allowed_tokens(matcher, BYTES)
        assert matcher.accept(rng.choice([token_id for token_id in LETTERS if token_id in allowed]))


def test_others_go_on(grammar):
    other = grammar.new_matcher()
    write(other, 50)
    compiled = compilations(grammar)
    for seed in range(20):
        write(grammar.new_matcher(), 100, seed)
    assert compilations(grammar) != compiled, "one compilation has no room for so much"
    write(other, 100, seed=1)


def test_the_same_masks_as_before(grammar):
    alone = LLGuidanceBackend(BYTES).compile(PARAMS).new_matcher()
    beside = grammar.new_matcher()
    compiled = compilations(grammar)
    rng = random.Random(3)
    for step in range(120):
        write(grammar.new_matcher(), 60, seed=step)
        assert allowed_tokens(alone, BYTES) == allowed_tokens(beside, BYTES)
        assert alone.is_accepting == beside.is_accepting
        token_id = rng.choice(LETTERS)
        assert alone.accept(token_id)
        assert beside.accept(token_id)
        if step % 10 == 9:
            alone.rollback(4)
            beside.rollback(4)
    assert not beside.accept(BYTES.encode("\n")[0])
    assert compilations(grammar) != compiled


def test_an_output_that_fills_it_again_and_again(grammar, monkeypatch):
    """It is this output's own fault then."""
    monkeypatch.setattr(lasting_grammar, "MIN_TOKENS", 10_000)
    with pytest.raises(RuntimeError, match="limits"):
        write(grammar.new_matcher(), 900)
    assert grammar.is_worn, "others are not to begin with what is full"


def test_what_takes_long_is_not_compiled_again_in_a_step(monkeypatch):
    monkeypatch.setattr(llguidance_backend, "MAX_LEXER_STATES", 3000)
    monkeypatch.setattr(lasting_grammar, "MAX_SECONDS", 0.0)
    backend = LLGuidanceBackend(BYTES)
    grammar = LastingGrammar(lambda: backend.compile(PARAMS))
    assert not grammar.is_worn
    with pytest.raises(RuntimeError, match="limits"):
        write(grammar.new_matcher(), 900)
    assert grammar.is_worn, "whoever comes next has it compiled anew"


def test_slow_masks_have_several_copies(monkeypatch):
    """Matchers of different groups share nothing."""
    monkeypatch.setattr(lasting_grammar, "SLOW_MASK_SECONDS", 0.0)
    monkeypatch.setattr(lasting_grammar, "MASKS_TO_JUDGE", 10)
    monkeypatch.setattr(lasting_grammar, "MAX_SECONDS", 1000.0)
    backend = LLGuidanceBackend(BYTES)
    grammar = LastingGrammar(lambda: backend.compile(PARAMS), max_copies=3)
    matchers = []
    for seed in range(9):
        matchers.append(grammar.new_matcher())
        write(matchers[-1], 12, seed)
    assert len({matcher.group for matcher in matchers}) == len(compilations(grammar)) == 3
    monkeypatch.setattr(lasting_grammar, "SLOW_MASK_SECONDS", 1000.0)
    quick = LastingGrammar(lambda: backend.compile(PARAMS), max_copies=3)
    write(quick.new_matcher(), 30)
    assert len(compilations(quick)) == 1


def test_copies_that_are_full_at_the_same_time(grammar, monkeypatch):
    monkeypatch.setattr(lasting_grammar, "SLOW_MASK_SECONDS", 0.0)
    monkeypatch.setattr(lasting_grammar, "MASKS_TO_JUDGE", 10)
    grammar._max_copies = 2
    write(grammar.new_matcher(), 12)
    compiled = compilations(grammar)
    assert len(compiled) == 2
    for seed in range(12):
        pair = [grammar.new_matcher() for _ in range(2)]
        for step in range(100):
            for matcher in pair:
                write(matcher, 1, seed=1000 * seed + step)
    assert not set(compiled) & set(compilations(grammar))
    assert sum(copy.num_bytes for copy in grammar._copies) == grammar.num_bytes > 2 * compiled[0].num_bytes
