"""Constrained outputs are in the language of their grammar, as programs of their own see it, and texts of the language
can be written."""

import itertools
import random
import re

import pytest

from pelton.grammar import registry
from pelton.grammar.backend import CompiledGrammar, UnsupportedGrammarError
from pelton.structured_outputs_params import StructuredOutputsParams
from tests.grammar import grammar_corpus
from tests.grammar.cfg import ALPHABET, Grammar, Recogniser, random_grammar
from tests.grammar.grammar_corpus import Language, NotationCase
from tests.grammar.installed_backends import compiled, compiled_or_refused, each_backend
from tests.grammar.random_generation import accepts, allowed_tokens, complete_texts, generate
from tests.grammar.random_regexes import mutated
from tests.grammar.small_vocabularies import PIECES

notations = pytest.mark.parametrize("notation", ["lark", "gbnf"])
languages = pytest.mark.parametrize("language", grammar_corpus.LANGUAGES, ids=lambda language: language.name)


@each_backend
@notations
@languages
def test_outputs_are_in_the_language(backend, notation, language):
    _check_outputs(backend, notation, language, num_outputs=20)


@each_backend
@notations
@languages
def test_texts_of_the_language_can_be_written_and_others_not(backend, notation, language):
    grammar = _grammar(backend, getattr(language, notation))
    rng = random.Random(language.name)
    for text in language.texts:
        assert language.is_member(text)
        assert accepts(grammar, PIECES, PIECES.encode(text)), text
        assert accepts(grammar, PIECES, PIECES.single_bytes(text)), text
        for _ in range(10):
            other = mutated(text, rng, text + "(\"1a \n'")
            if not language.is_member(other):
                assert not accepts(grammar, PIECES, PIECES.encode(other)), other


@each_backend
@pytest.mark.slow
@notations
@languages
def test_many_outputs_are_in_the_language(backend, notation, language):
    _check_outputs(backend, notation, language, num_outputs=300)


@each_backend
@notations
@pytest.mark.parametrize("seed", range(30))
def test_language_of_a_random_grammar(backend, notation, seed):
    """Rules of single characters: what has been written decides nothing but what may follow."""
    _check_random_grammar(backend, notation, random_grammar(random.Random(seed)), random.Random(seed), max_length=3)


@each_backend
@pytest.mark.slow
@notations
@pytest.mark.parametrize("seed", range(30, 500))
def test_language_of_many_random_grammars(backend, notation, seed):
    _check_random_grammar(backend, notation, random_grammar(random.Random(seed)), random.Random(seed), max_length=5)


@each_backend
@pytest.mark.parametrize("seed", range(30))
def test_language_of_a_random_grammar_of_longer_literals(backend, seed):
    """GBNF's literals are nothing but their characters, also where one begins like another."""
    grammar = random_grammar(random.Random(-1 - seed), max_text_length=2)
    _check_random_grammar(backend, "gbnf", grammar, random.Random(seed), max_length=4)


@each_backend
@pytest.mark.parametrize("seed", range(30))
def test_outputs_of_a_random_lark_grammar_of_longer_literals(backend, seed):
    """Lark's terminals take as much as they can: outputs are in the language, but not every text of it can be one."""
    grammar = random_grammar(random.Random(-1 - seed), max_text_length=3)
    recogniser = Recogniser(grammar)
    _check_outputs_are_recognised(_grammar(backend, grammar.as_lark()), recogniser, random.Random(seed))


@each_backend
@notations
@pytest.mark.parametrize("seed", range(20))
def test_mask_has_the_tokens_that_can_lead_to_a_text(backend, notation, seed):
    rng = random.Random(seed)
    sample = random_grammar(rng)
    grammar = _grammar(backend, getattr(sample, f"as_{notation}")())
    recogniser = Recogniser(sample)
    tokens = {
        token_id: content.decode()
        for token_id, content in enumerate(PIECES.token_bytes)
        if token_id not in PIECES.special_token_ids and re.fullmatch(b"(?:[ab]|\xc3\xa9)+", content)
    }
    for _ in range(3):
        text = sample.draw(rng)
        text = text[: rng.randint(0, len(text))]
        matcher = grammar.new_matcher()
        assert all(matcher.accept(token_id) for token_id in PIECES.encode(text))
        expected = {token_id for token_id, token in tokens.items() if recogniser.is_beginning(text + token)}
        assert set(allowed_tokens(matcher, PIECES)) & tokens.keys() == expected


@each_backend
@pytest.mark.parametrize("case", grammar_corpus.GBNF_NOTATION, ids=lambda case: case.grammar)
def test_notation_of_gbnf(backend, case):
    _check_notation(backend, case)


@each_backend
@pytest.mark.parametrize("case", grammar_corpus.LARK_NOTATION, ids=lambda case: case.grammar)
def test_notation_of_lark(backend, case):
    _check_notation(backend, case)


@pytest.mark.parametrize("text", [*grammar_corpus.INVALID_LARK, *grammar_corpus.INVALID_GBNF])
def test_what_is_no_grammar_is_refused(text):
    """In one sentence: what cannot be read, and what has no text or rules that never end."""
    with pytest.raises(UnsupportedGrammarError, match="grammar") as refusal:
        registry.resolve(StructuredOutputsParams(grammar=text))
    _check_message(refusal.value)


@each_backend
@notations
def test_deep_recursion(backend, notation):
    brackets = next(language for language in grammar_corpus.LANGUAGES if language.name == "brackets")
    grammar = _grammar(backend, getattr(brackets, notation))
    text = "([{" * 300
    assert not accepts(grammar, PIECES, PIECES.encode(text))
    assert accepts(grammar, PIECES, PIECES.encode(text + "}])" * 300))
    assert not accepts(grammar, PIECES, PIECES.encode(text + "}])" * 299 + "}]]"))


@each_backend
@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= item*\nitem ::= "a" | "b"',
        'root ::= root item | item\nitem ::= "a" | "b"',
        'root ::= "a" root "b" | "ab" | "ba" root?',
    ],
)
def test_long_outputs(backend, grammar):
    """Two thousand tokens: what one of them takes must not grow without bound."""
    matcher = _grammar(backend, grammar).new_matcher()
    for token_id in PIECES.single_bytes("a" * 2000):
        if not matcher.accept(token_id):
            assert grammar.startswith('root ::= "a" root')
            break
    assert allowed_tokens(matcher, PIECES)


@each_backend
@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + " | ".join(f'"word{index}"' for index in range(10_000)),
        "root ::= r0\n" + "".join(f'r{index} ::= "a" r{index + 1} | "b"\n' for index in range(3000)) + 'r3000 ::= "c"',
        "root ::= " + "(" * 2000 + '"a"' + ")" * 2000,
        'root ::= "a"{1,100000}',
        'root ::= (("a"{0,1000}){0,1000}){0,1000}',
        "root ::= " + " ".join(['("a" | "b")?'] * 2000),
        'root ::= s s s s s s s s\ns ::= s s | "a" | ""',
        "start: " + " | ".join(f'"word{index}"' for index in range(10_000)),
        "start: " + "(" * 2000 + '"a"' + ")" * 2000,
        'start: x{1,100000}\nx: "a" | "b"',
        "start: " + "\n     | ".join(f'"a" r{index}' for index in range(1000)) + "\n"
        + "\n".join(f'r{index}: "b" "{index}"' for index in range(1000)),
    ],
    ids=lambda grammar: grammar[:40],
)  # fmt: skip
def test_huge_grammars_are_refused_or_work(backend, grammar):
    huge = compiled_or_refused(backend, StructuredOutputsParams(grammar=grammar, backend=backend))
    if isinstance(huge, UnsupportedGrammarError):
        _check_message(huge)
        return
    for seed in range(3):
        output = generate(huge, PIECES, random.Random(seed), max_tokens=20)
        assert PIECES.decode(output.token_ids).decode().isalnum() or output.is_complete


def _check_outputs(backend: str, notation: str, language: Language, num_outputs: int) -> None:
    grammar = _grammar(backend, getattr(language, notation))
    rng = random.Random(language.name)
    own_characters = set("".join(language.texts).encode())
    own = frozenset(
        token_id for token_id, content in enumerate(PIECES.token_bytes) if own_characters.issuperset(content)
    )
    num_complete = 0
    for _ in range(num_outputs):
        output = generate(grammar, PIECES, rng, max_tokens=60, stop_chance=0.5, preferred=own, preference=0.9)
        if output.is_complete:
            text = PIECES.decode(output.token_ids).decode()
            assert language.is_member(text), text
            num_complete += 1
    assert num_complete


def _check_random_grammar(backend: str, notation: str, sample: Grammar, rng: random.Random, *, max_length: int) -> None:
    grammar = _grammar(backend, getattr(sample, f"as_{notation}")())
    recogniser = Recogniser(sample)
    possible = map(
        "".join, itertools.chain.from_iterable(itertools.product(ALPHABET, repeat=n) for n in range(max_length + 1))
    )
    expected = sorted(filter(recogniser.recognises, possible))
    assert sorted(complete_texts(grammar, PIECES, ALPHABET, max_length)) == expected
    for _ in range(4):
        text = sample.draw(rng)
        assert accepts(grammar, PIECES, PIECES.encode(text)), text
        assert accepts(grammar, PIECES, PIECES.single_bytes(text)), text
        other = mutated(text, rng, ALPHABET)
        assert accepts(grammar, PIECES, PIECES.encode(other)) == recogniser.recognises(other), other
    _check_outputs_are_recognised(grammar, recogniser, rng)


def _check_outputs_are_recognised(grammar: CompiledGrammar, recogniser: Recogniser, rng: random.Random) -> None:
    for _ in range(5):
        output = generate(grammar, PIECES, rng, max_tokens=15)
        content = PIECES.decode(output.token_ids)
        if output.is_complete:
            assert recogniser.recognises(content.decode()), content
        else:
            assert recogniser.is_beginning(content.decode(errors="ignore")), content


def _check_notation(backend: str, case: NotationCase) -> None:
    grammar = _grammar(backend, case.grammar)
    for text in case.matches:
        assert accepts(grammar, PIECES, PIECES.encode(text)), text
        assert accepts(grammar, PIECES, PIECES.single_bytes(text)), text
    for text in case.others:
        assert not accepts(grammar, PIECES, PIECES.encode(text)), text
        assert not accepts(grammar, PIECES, PIECES.single_bytes(text)), text


def _check_message(error: ValueError) -> None:
    """One sentence that names the field, and is short enough to be read."""
    message = str(error)
    assert "grammar" in message
    assert "\n" not in message
    assert len(message) < 1000


def _grammar(backend: str, text: str) -> CompiledGrammar:
    return compiled(backend, StructuredOutputsParams(grammar=text, backend=backend))
