"""llguidance's matchers: masks, acceptance, the end, what is never allowed, and limits."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.grammar import llguidance_backend
from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.llguidance_backend import LLGuidanceBackend
from pelton.structured_outputs_params import StructuredOutputsParams
from tests.grammar.random_generation import accepts, allowed_tokens, generate, mask_of
from tests.grammar.small_vocabularies import BYTES, PIECES, SmallVocabulary
from tests.support.tiny_llama import smollm2_tokenizer

BACKEND = LLGuidanceBackend(BYTES)
PIECES_BACKEND = LLGuidanceBackend(PIECES)
_SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}, "required": ["name"]}


def _matcher(backend=BACKEND, **fields):
    return backend.compile(StructuredOutputsParams(**fields)).new_matcher()


def _accepts(text, backend=BACKEND, **fields):
    BACKEND.check(StructuredOutputsParams(**fields))
    return accepts(backend.compile(StructuredOutputsParams(**fields)), BYTES, BYTES.encode(text))


def test_kinds():
    assert _accepts('{"a": [1, {}]}', json_object=True)
    assert not _accepts("[]", json_object=True)
    assert _accepts("aab", regex="a+b|c")
    assert not _accepts("ab ", regex="a+b|c")
    assert _accepts('é\n"\\/\x7f😀', choice=["a", 'é\n"\\/\x7f😀'])
    assert not _accepts("", choice=["a"])
    assert _accepts("ab", grammar='start: "a" "b"')
    assert _accepts("ab", grammar='root ::= "a" "b"')


def test_a_refused_token_changes_nothing():
    matcher = _matcher(regex="ab?c")
    for token_id in (ord("b"), 256, 257, 10**9, -1):
        assert not matcher.accept(token_id)
    assert allowed_tokens(matcher, BYTES) == [ord("a")]
    assert matcher.accept(ord("a"))
    assert not matcher.accept(ord("a"))
    assert allowed_tokens(matcher, BYTES) == [ord("b"), ord("c")]


def test_nothing_follows_the_end_and_rollback_leads_back():
    matcher = _matcher(regex="ab")
    assert not matcher.is_accepting
    assert matcher.accept(ord("a"))
    assert matcher.accept(ord("b"))
    assert matcher.is_accepting
    assert allowed_tokens(matcher, BYTES) == []
    assert not matcher.accept(ord("b"))
    assert not matcher.accept(256)
    matcher.rollback(1)
    assert not matcher.is_accepting
    assert allowed_tokens(matcher, BYTES) == [ord("b")]
    assert matcher.accept(ord("b"))
    matcher.rollback(2)
    matcher.rollback(0)
    assert allowed_tokens(matcher, BYTES) == [ord("a")]
    with pytest.raises(ValueError, match="num_tokens"):
        matcher.rollback(1)


def test_matchers_of_one_grammar_do_not_disturb_each_other():
    grammar = BACKEND.compile(StructuredOutputsParams(regex="ab|cd"))
    first, second = grammar.new_matcher(), grammar.new_matcher()
    assert first.accept(ord("a"))
    assert second.accept(ord("c"))
    assert allowed_tokens(first, BYTES) == [ord("b")]
    assert allowed_tokens(second, BYTES) == [ord("d")]
    assert allowed_tokens(grammar.new_matcher(), BYTES) == [ord("a"), ord("c")]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 30))
def test_rollback_restores_masks(seed, steps):
    rng = random.Random(seed)
    grammar = PIECES_BACKEND.compile(StructuredOutputsParams(json=_SCHEMA))
    matcher = grammar.new_matcher()
    history = [(mask_of(matcher, PIECES.vocab_size).tobytes(), matcher.is_accepting)]
    taken = []
    for _ in range(steps):
        allowed = allowed_tokens(matcher, PIECES)
        if not allowed:
            break
        taken.append(rng.choice(allowed))
        assert matcher.accept(taken[-1])
        history.append((mask_of(matcher, PIECES.vocab_size).tobytes(), matcher.is_accepting))
    back = rng.randint(0, len(taken))
    matcher.rollback(back)
    for token_id in [*taken[len(taken) - back :], None]:
        expected = history[len(taken) - back]
        assert (mask_of(matcher, PIECES.vocab_size).tobytes(), matcher.is_accepting) == expected
        if token_id is not None:
            assert matcher.accept(token_id)
            back -= 1


@pytest.mark.parametrize("num_rows", [257, 287, 288, 289, 320, 1000])
def test_rows_without_tokens_are_never_allowed(num_rows):
    tokens = [*BYTES.token_bytes, *[b""] * (num_rows - 257)]
    vocabulary = SmallVocabulary(tokens, (256,))
    matcher = LLGuidanceBackend(vocabulary).compile(StructuredOutputsParams(regex="(?:.|\\n)*")).new_matcher()
    allowed = allowed_tokens(matcher, vocabulary)
    assert set(range(128)) <= set(allowed)
    assert not any(matcher.accept(token_id) for token_id in range(256, num_rows))
    row = np.full(-(-num_rows // 32) + 2, 0xFFFFFFFF, np.uint32)
    matcher.fill_bitmask(row[1:-1])
    assert row[0] == row[-1] == 0xFFFFFFFF


def test_tokens_with_the_same_text_are_all_allowed():
    vocabulary = SmallVocabulary([b"a", b"b", b"a", b"ab", b"ab"], ())
    matcher = LLGuidanceBackend(vocabulary).compile(StructuredOutputsParams(regex="a+b")).new_matcher()
    assert allowed_tokens(matcher, vocabulary) == [0, 2, 3, 4]
    assert matcher.accept(2)
    assert matcher.accept(4)
    assert matcher.is_accepting


def test_tokens_with_parts_of_characters():
    grammar = PIECES_BACKEND.compile(StructuredOutputsParams(choice=["é€😀", "aéb"]))
    for seed in range(40):
        output = generate(grammar, PIECES, random.Random(seed))
        assert PIECES.decode(output.token_ids).decode() in ("é€😀", "aéb")


def test_special_tokens_are_no_text():
    matcher = _matcher(PIECES_BACKEND, regex="<s>a")
    assert not matcher.accept(0)
    assert matcher.accept(ord("<") + 3)


def test_ten_thousand_choices_are_an_exact_set():
    choices = [f"{number * 7919 % 10007} é{number}" for number in range(10_000)]
    grammar = BACKEND.compile(StructuredOutputsParams(choice=choices))
    for text in (choices[0], choices[77], choices[-1]):
        assert accepts(grammar, BYTES, BYTES.encode(text))
        assert not accepts(grammar, BYTES, BYTES.encode(text + "0"))
        assert not accepts(grammar, BYTES, BYTES.encode(text[:-1] + "x"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=6), st.data())
def test_choices_of_any_characters(choices, data):
    grammar = BACKEND.compile(StructuredOutputsParams(choice=choices))
    for text in choices:
        assert accepts(grammar, BYTES, BYTES.encode(text))
    other = data.draw(st.text(max_size=4))
    assert accepts(grammar, BYTES, BYTES.encode(other)) == (other in choices)


def test_whitespace_ends_even_for_a_model_that_loves_it():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    matcher = grammar.new_matcher()
    output = b""
    while allowed := allowed_tokens(matcher, BYTES):
        token_id = next((ord(char) for char in "\n \t" if ord(char) in allowed), None)
        token_id = allowed[-1] if token_id is None else token_id
        token_id = ord("}") if ord("}") in allowed and token_id not in b" \n\t" else token_id
        assert matcher.accept(token_id)
        output += bytes([token_id])
        assert len(output) < 400
    assert matcher.is_accepting
    assert isinstance(json.loads(output)["a"], int)


def test_threads_may_compile_at_once():
    backend = LLGuidanceBackend(PIECES)

    def first_mask(number):
        params = StructuredOutputsParams(json={"const": f"text {number}"})
        backend.check(params)
        return accepts(backend.compile(params), PIECES, PIECES.encode(f'"text {number}"'))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(first_mask, range(40)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "(a"}, r"regex: '\(a' has no closing \) for the \( at character 0; close it"),
        ({"regex": "[^\\s\\S]"}, "matches nothing"),
        ({"regex": "((a{1,100}){1,100}){1,100}"}, "repeats repetitions up to"),
        ({"grammar": 'x: "a"'}, "no rule start"),
        ({"grammar": 'start: "a'}, 'the " at character 7 has no end on its line'),
        ({"grammar": "start: @"}, r"^grammar: llguidance cannot keep it: 1\(\d+\): lexer error$"),
        (
            {"json": {"allOf": [{"anyOf": [{"required": [f"{letter}{n}"]} for letter in "ab"]} for n in range(20)]}},
            "too large",
        ),
        (
            {"json": {"pattern": "(a|b)*c", "minLength": 500, "maxLength": 1000, "type": "string"}},
            "too complex together",
        ),
    ],
)
def test_messages(fields, message):
    params = StructuredOutputsParams(**fields)
    for refuses in (BACKEND.check, BACKEND.compile):
        with pytest.raises(UnsupportedGrammarError, match=message) as caught:
            refuses(params)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(.*)*x", "(a?){40}a{40}", "[^b]*a.{15}", "(.{0,100}){0,100}x"]
)
def test_regexes_that_are_hard_on_backtracking(pattern):
    matcher = _matcher(PIECES_BACKEND, regex=pattern)
    for _ in range(30):
        assert matcher.accept(ord("a") + 3)
        mask_of(matcher, PIECES.vocab_size)


def test_exceeded_limits_are_runtime_errors(monkeypatch):
    monkeypatch.setattr(llguidance_backend, "MAX_LEXER_STATES", 20)
    matcher = _matcher(regex="[ab]*a[ab]{8}")
    with pytest.raises(RuntimeError, match=r"^llguidance: .*") as caught:
        _follow(matcher, b"abaabbabab" * 20)
    assert str(caught.value).isprintable()


def _follow(matcher, text):
    row = np.zeros(9, np.uint32)
    for byte in text:
        matcher.fill_bitmask(row)
        assert matcher.accept(byte)


def test_a_real_vocabulary():
    tokenizer = smollm2_tokenizer()
    tokens = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
    vocabulary = SmallVocabulary(tokens, tokenizer.special_token_ids)
    backend = LLGuidanceBackend(vocabulary)
    grammar = backend.compile(StructuredOutputsParams(json=_SCHEMA))
    text = '{"name": "Zoë 😀", "n": 12}'
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert accepts(grammar, vocabulary, token_ids)
    for seed in range(3):
        output = generate(grammar, vocabulary, random.Random(seed), max_tokens=20)
        if output.is_complete:
            assert "name" in json.loads(vocabulary.decode(output.token_ids))
