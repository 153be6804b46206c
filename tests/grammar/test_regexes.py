"""Constrained outputs match their regular expression, as the `regex` package reads it, and all that matches can be
written."""

import random
import re
import time
import unicodedata
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any
from zlib import crc32

import pytest
import regex
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pelton.error_text import shown
from pelton.grammar import registry
from pelton.grammar.backend import CompiledGrammar, UnsupportedGrammarError
from pelton.structured_outputs_params import StructuredOutputsParams
from tests.grammar import regex_corpus
from tests.grammar.installed_backends import compiled, compiled_or_refused, each_backend
from tests.grammar.random_generation import (
    accepts,
    allowed_tokens,
    complete_characters,
    complete_texts,
    generate,
)
from tests.grammar.random_regexes import ALPHABET, mutated, random_regex
from tests.grammar.regex_corpus import RegexCase, as_promised
from tests.grammar.small_vocabularies import BYTES, PIECES, SmallVocabulary

cases = pytest.mark.parametrize("case", regex_corpus.CASES, ids=lambda case: case.pattern[:40])


@each_backend
@cases
def test_outputs_match(backend, case):
    grammar = _grammar(backend, case.pattern)
    _check_outputs(grammar, PIECES, case.reference_pattern, num_outputs=20)


@each_backend
@cases
def test_examples_can_be_written_in_every_cut(backend, case):
    grammar = _grammar(backend, case.pattern)
    for text in case.matches:
        assert regex.fullmatch(case.reference_pattern, text)
        assert accepts(grammar, PIECES, PIECES.encode(text)), text
        assert accepts(grammar, PIECES, PIECES.single_bytes(text)), text
        assert accepts(grammar, PIECES, _random_cut(PIECES, text, random.Random(text))), text
    for text in case.others:
        assert not regex.fullmatch(case.reference_pattern, text)
        assert not accepts(grammar, PIECES, PIECES.encode(text)), text
        assert not accepts(grammar, PIECES, PIECES.single_bytes(text)), text


@each_backend
@cases
def test_mutated_examples_pass_if_they_match(backend, case):
    grammar = _grammar(backend, case.pattern)
    rng = random.Random(case.pattern)
    for text in case.matches:
        if len(text) > 2048:
            continue
        for _ in range(5):
            other = mutated(text, rng, text + "a1 \n\"'é")
            is_match = regex.fullmatch(case.reference_pattern, other) is not None
            assert accepts(grammar, PIECES, PIECES.encode(other)) == is_match, other


@each_backend
@settings(max_examples=120, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(data=st.data())
def test_what_hypothesis_makes_of_a_pattern_can_be_written(backend, data):
    case = data.draw(st.sampled_from(_for_hypothesis()))
    text = data.draw(st.from_regex(case.pattern, fullmatch=True))
    assume(regex.fullmatch(case.reference_pattern, text))  # classes differ between `re` and what is promised
    grammar = _grammar(backend, case.pattern)
    assert accepts(grammar, PIECES, PIECES.encode(text))
    assert accepts(grammar, PIECES, PIECES.single_bytes(text))


@each_backend
@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", [BYTES, PIECES], ids=["bytes", "pieces"])
@cases
def test_many_outputs_match(backend, vocabulary, case):
    grammar = _grammar(backend, case.pattern, vocabulary)
    _check_outputs(grammar, vocabulary, case.reference_pattern, num_outputs=200)


@each_backend
@pytest.mark.parametrize("seed", range(60))
def test_language_of_a_random_pattern(backend, seed):
    """All texts of up to three characters, and longer ones that the pattern itself has made."""
    _check_language(backend, seed, max_length=3)


@each_backend
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60, 1500))
def test_language_of_many_random_patterns(backend, seed):
    _check_language(backend, seed, max_length=5)


@each_backend
@pytest.mark.parametrize("seed", range(25))
def test_mask_has_the_tokens_that_can_lead_to_a_match(backend, seed):
    rng = random.Random(seed)
    sample = random_regex(rng)
    grammar = _grammar(backend, sample.pattern)
    pattern = regex.compile(as_promised(sample.pattern))
    tokens = _texts_of_tokens(PIECES)
    for _ in range(3):
        text = sample.draw(rng)
        text = text[: rng.randint(0, len(text))]
        matcher = grammar.new_matcher()
        assert all(matcher.accept(token_id) for token_id in PIECES.encode(text))
        allowed = set(allowed_tokens(matcher, PIECES)) & tokens.keys()
        assert allowed == {
            token_id for token_id, token in tokens.items() if pattern.fullmatch(text + token, partial=True)
        }


CLASSES: dict[str, Callable[[str], bool]] = {
    ".": lambda character: character != "\n",
    "(?:.|\n)": lambda character: True,
    r"\d": lambda character: character in "0123456789",
    r"\D": lambda character: unicodedata.category(character) != "Nd",
    r"\s": lambda character: character.isspace() and character not in "\x1c\x1d\x1e\x1f\x85",
    r"\S": lambda character: not character.isspace() and character != "\ufeff",
    r"\w": lambda character: character.isascii() and (character.isalnum() or character == "_"),
    r"\W": lambda character: not (character.isalnum() or character == "_"),
    r"[^\d]": lambda character: unicodedata.category(character) != "Nd",
    r"[^\w]": lambda character: not (character.isalnum() or character == "_"),
    r"[^\D]": lambda character: character in "0123456789",
    r"[^\W]": lambda character: character.isascii() and (character.isalnum() or character == "_"),
    r"[^\S]": lambda character: character.isspace() and character not in "\x1c\x1d\x1e\x1f\x85",
    r"[^a-y]": lambda character: not "a" <= character <= "y",
    r"[\x00-\U0010ffff]": lambda character: True,
    r"[à-å]": lambda character: "à" <= character <= "å",
    r"\p{L}": lambda character: unicodedata.category(character)[0] == "L",
    r"\P{L}": lambda character: unicodedata.category(character)[0] != "L",
    r"\p{Lu}": lambda character: unicodedata.category(character) == "Lu",
    r"\p{P}": lambda character: unicodedata.category(character)[0] == "P",
    r"[^\p{L}\p{N}]": lambda character: unicodedata.category(character)[0] not in "LN",
    "k": lambda character: character == "k",
}
"""What a pattern of one character matches."""


@each_backend
@pytest.mark.parametrize("pattern", CLASSES)
def test_characters_of_a_class(backend, pattern):
    """A sample of the characters that Python knows; a newer Unicode may have given meaning to others."""
    _check_class(backend, pattern, lambda first_bytes: len(first_bytes) < 2 or crc32(first_bytes) % 40 == 0)


@each_backend
@pytest.mark.slow
@pytest.mark.parametrize("pattern", CLASSES)
def test_all_characters_of_a_class(backend, pattern):
    _check_class(backend, pattern, lambda first_bytes: True)


@each_backend
@pytest.mark.parametrize("case", regex_corpus.DIALECTS, ids=lambda case: case.pattern)
def test_what_engines_read_differently_is_refused_or_kept(backend, case):
    grammar = compiled_or_refused(backend, StructuredOutputsParams(regex=case.pattern, backend=backend))
    if isinstance(grammar, UnsupportedGrammarError):
        _check_message(grammar, "regex")
        return
    _check_outputs(grammar, PIECES, case.reference_pattern, num_outputs=20)
    for text in (*case.matches, *case.others):
        assert accepts(grammar, PIECES, PIECES.encode(text)) == (text in case.matches), text


@pytest.mark.parametrize(("pattern", "word"), regex_corpus.UNSUPPORTED)
def test_what_no_backend_can_keep_is_refused_by_name(pattern, word):
    with pytest.raises(UnsupportedGrammarError) as refusal:
        registry.resolve(StructuredOutputsParams(regex=pattern))
    _check_message(refusal.value, "regex")
    assert word.lower() in str(refusal.value).lower()


@pytest.mark.parametrize("pattern", regex_corpus.INVALID)
def test_what_is_no_pattern_is_refused(pattern):
    with pytest.raises(ValueError, match="regex") as refusal:
        registry.resolve(StructuredOutputsParams(regex=pattern))
    _check_message(refusal.value, "regex")


MALFORMED = {
    "(abc": "no closing ) for the ( at character 0; close it",
    "x(a(b)": "no closing ) for the ( at character 1; close it",
    "(?:": "no closing ) for the ( at character 0; close it",
    "a(?": "no closing ) for the ( at character 1; close it",
    "(?P<n": "no closing > for the < at character 3; close it",
    "ab)c": r"an unmatched ) at character 2; leave it out, or write \) for the character",
    "[a": "no closing ] for the [ at character 0; close it",
    r"a[\]": "no closing ] for the [ at character 1; close it",
    "a\\": r"a \ with nothing behind it at character 1; write \\ for the character",
    "[a\\": r"a \ with nothing behind it at character 2; write \\ for the character",
    "a{3,1}": "a repetition from 3 to 1 at character 1; write the smaller number first",
    "a{,2}": r"a repetition that is not {n}, {n,} or {n,m} at character 1; write one of these, or \{ for the character",
    "*a": r"a * that repeats nothing at character 0; put what it repeats before it, or write \* for the character",
    "(a|+)": r"a + that repeats nothing at character 3; put what it repeats before it, or write \+ for the character",
    "a|}": r"a bare } at character 2; write \} for the character",
    "[z-a]": "a range whose ends are in the wrong order at character 1; swap them",
    r"[ab\d-z]": r"a range whose ends are no single characters at character 3; write \- for the character -",
    r"ab\x4": r"an incomplete escape at character 2; write \xHH, \uHHHH, \UHHHHHHHH or \u{H...}, in hexadecimal",
    r"\x{12": "no closing } for the { at character 2; close it",
    r"a\ud800b": "an escape that is no character at character 1; write one up to 10FFFF and not from D800 to DFFF",
}
"""What each of them has, where, and what to do about it."""

_WITHOUT = "write the expression without it"
_WHOLE = "leave it out, the whole output is matched anyway"
REMEDIES = {
    "a(?=b)": ("look-around at character 1", _WITHOUT),
    "(?<!a)b": ("look-around at character 0", _WITHOUT),
    r"(a)\1": ("a back-reference at character 3", _WITHOUT),
    "(?P<a>b)(?P=a)": ("a back-reference at character 8", _WITHOUT),
    r"a\b": (r"the assertion \b at character 1", _WITHOUT),
    r"\Aa": (r"the assertion \A at character 0", _WHOLE),
    r"a\Z": (r"the assertion \Z at character 1", _WHOLE),
    "(?i)a": ("a group that begins with (?i at character 0", "write both cases, such as [Aa]"),
    "a(?s:.)": ("a group that begins with (?s at character 1", r"write (?:.|\s) for any character"),
    "a(?#b)": ("a group that begins with (?# at character 1", "leave it out"),
    "a(?>b)": ("a group that begins with (?> at character 1", _WITHOUT),
    "ab++": ("a possessive repetition at character 2", _WITHOUT),
    "a{2}{3}": ("a repetition of a repetition at character 4", "put what it repeats into a group, (?:...)"),
    "b(a$)c": (
        "an anchor that is not at an end of the expression or of one of its alternatives at character 3",
        _WITHOUT,
    ),
    "a^*": ("a repeated anchor at character 1", "leave the repetition out"),
    "ab{100001}": (
        "a repetition of more than 100000 times at character 2",
        "write a smaller bound, or none, {n,}",
    ),
    "x[]a]": ("a ] at the beginning of a class at character 2", r"write \] for the character"),
    "x[a[:digit:]]": ("a class with a POSIX name at character 3", "write its characters, such as A-Za-z"),
    "[a-z&&b]": ("the operator && of a class at character 4", r"write \& for the character"),
    r"a\q": (r"the escape \q at character 1", "write the characters that it stands for"),
    r"a\p{Han}": (
        "the property 'Han' at character 1",
        r"write its ranges, or a general category of one or two letters, such as \p{L}",
    ),
    "(" * 51 + "a" + ")" * 51: ("a group within more than 50 others at character 50", "write fewer groups"),
}
"""What is not supported in each of them, where, and what to do about it."""


@pytest.mark.parametrize("backend", registry.BACKENDS)
@pytest.mark.parametrize("pattern", MALFORMED)
def test_what_is_malformed_is_named_with_its_place(backend, pattern):
    assert _refusal(backend, regex=pattern) == f"regex: {shown(pattern)} has {MALFORMED[pattern]}"


@pytest.mark.parametrize("backend", registry.BACKENDS)
@pytest.mark.parametrize("pattern", REMEDIES)
def test_what_is_unsupported_is_refused_with_a_remedy(backend, pattern):
    what, remedy = REMEDIES[pattern]
    assert _refusal(backend, regex=pattern) == f"regex: {what} of {shown(pattern)} is not supported; {remedy}"


@pytest.mark.parametrize("backend", registry.BACKENDS)
@pytest.mark.parametrize(("pattern", "remedy"), [(r"\Aa", "write ^"), (r"a\Z", "write $"), (r"a\z", "write $")])
def test_assertions_of_patterns_that_may_match_anywhere_have_another_remedy(backend, pattern, remedy):
    message = _refusal(backend, json={"type": "string", "pattern": pattern})
    assert message.endswith(f"of {shown(pattern)} is not supported; {remedy}")


def _refusal(backend: str, **constraint: Any) -> str:
    """Needs no backend that is installed."""
    with pytest.raises(UnsupportedGrammarError) as refusal:
        registry.load_backend(backend).check(StructuredOutputsParams(**constraint, backend=backend))
    _check_message(refusal.value, next(iter(constraint)))
    return str(refusal.value)


@each_backend
@pytest.mark.parametrize("pattern", regex_corpus.IMPOSSIBLE)
def test_patterns_that_nothing_matches_are_refused(backend, pattern):
    with pytest.raises(UnsupportedGrammarError) as refusal:
        registry.resolve(StructuredOutputsParams(regex=pattern, backend=backend))
    _check_message(refusal.value, "regex")


HUGE = {
    "(.{0,1000}){0,1000}": r".*",
    "a{1,100000}": "a+",
    "(a{1000}){1000}": "a*",
    "a{1000000}": "a*",
    "a{1000000000}": "a*",
    "((a{0,50}){0,50}){0,50}": "a*",
    r"[a-z]{5000}\d{5000}": r"[a-z]*\d*",
    "|".join(f"word{i}" for i in range(10_000)): r"word[0-9]{1,4}",
    "|".join(f"{i:05d}.*{i:05d}" for i in range(500)): r"00[0-9]{3}.*00[0-9]{3}",
    "(a|b)*a(a|b){30}": "[ab]*",
    "((a|b)*a(a|b){10}|(b|c)*c(b|c){10}){1,20}": "[abc]*",
    "(.*.*)*x": ".*x",
    r"((\w{1,100}\s){1,100}){1,100}": r"[\w\s]*",
    "(?:a?){500}a{500}": "a*",
    "(" * 200 + "a" + ")" * 200: "a",
    "(" * 5000 + "a" + ")" * 5000: "a",
    "(" * 100 + "a" + ")*" * 100: "a*",
    "a" * 100_000: "a*",
    "[a-z]*" * 1000: "[a-z]*",
    r"\p{L}{1,1000}\p{N}{1,1000}": r"\p{L}*\p{N}*",
    "(.*a){100}": "(?s:.*)",
    ".*" + "".join(f"(a{i}|b{i})?" for i in range(300)): ".*",
}
"""What could take for ever, and a looser pattern that its outputs match."""


@each_backend
@pytest.mark.parametrize("pattern", HUGE, ids=lambda pattern: pattern[:40])
def test_huge_patterns_are_refused_or_work_in_bounded_time(backend, pattern):
    """Compiled and followed for a few tokens, they take at most some thousand times what a small one takes."""
    small = min(_seconds_for(backend, "a{1,5}b", "a*b?") for _ in range(3))
    assert _seconds_for(backend, pattern, HUGE[pattern]) < 3000 * small


def _seconds_for(backend: str, pattern: str, looser: str) -> float:
    start = time.perf_counter()
    grammar = compiled_or_refused(backend, StructuredOutputsParams(regex=pattern, backend=backend))
    outputs = []
    if isinstance(grammar, UnsupportedGrammarError):
        _check_message(grammar, "regex")
    else:
        rng = random.Random(1)
        outputs = [generate(grammar, PIECES, rng, preferred=PIECES.plain_token_ids) for _ in range(2)]
    seconds = time.perf_counter() - start
    for output in outputs:
        text = PIECES.decode(output.token_ids).decode(errors="ignore")
        assert regex.fullmatch(looser, text, partial=True)
    return seconds


@cache
def _grammar(backend: str, pattern: str, vocabulary: SmallVocabulary = PIECES) -> CompiledGrammar:
    params = StructuredOutputsParams(regex=pattern, backend=backend)
    return compiled(backend, params, "bytes" if vocabulary is BYTES else "pieces")


def _check_outputs(grammar: CompiledGrammar, vocabulary: SmallVocabulary, pattern: str, num_outputs: int) -> None:
    """Complete outputs match; those that were cut are the beginning of a match."""
    rng = random.Random(pattern)
    compiled_pattern = regex.compile(pattern)
    for _ in range(num_outputs):
        output = generate(grammar, vocabulary, rng, max_tokens=30, preferred=vocabulary.plain_token_ids)
        content = vocabulary.decode(output.token_ids)
        if any(unicodedata.category(character) == "Cn" for character in content.decode(errors="ignore")):
            continue  # a newer Unicode may have given meaning to it
        if output.is_complete:
            assert compiled_pattern.fullmatch(content.decode()), content
        else:
            assert compiled_pattern.fullmatch(content.decode(errors="ignore"), partial=True), content


def _check_class(backend: str, pattern: str, is_tried: Callable[[bytes], bool]) -> None:
    found = set(complete_characters(_grammar(backend, pattern, BYTES), BYTES, is_tried))
    tried = {character for character in _all_characters() if is_tried(character.encode()[:-1])}
    assert found & tried == set(filter(CLASSES[pattern], tried))
    assert found <= tried | {character for character in found if unicodedata.category(character) == "Cn"}


def _check_language(backend: str, seed: int, max_length: int) -> None:
    rng = random.Random(seed)
    sample = random_regex(rng)
    grammar = _grammar(backend, sample.pattern)
    texts = ("".join(letters) for length in range(max_length + 1) for letters in product(ALPHABET, repeat=length))
    pattern = re.compile(
        as_promised(sample.pattern)
    )  # `regex` 2026.11.19 takes [^é]|[^a] for a character that is neither
    expected = sorted(filter(pattern.fullmatch, texts))
    assert sorted(complete_texts(grammar, PIECES, ALPHABET, max_length)) == expected
    for _ in range(5):
        text = sample.draw(rng)
        assert accepts(grammar, PIECES, PIECES.encode(text)), text
        assert accepts(grammar, PIECES, _random_cut(PIECES, text, rng)), text
        other = mutated(text, rng, ALPHABET)
        assert accepts(grammar, PIECES, PIECES.encode(other)) == bool(pattern.fullmatch(other)), other


def _random_cut(vocabulary: SmallVocabulary, text: str, rng: random.Random) -> list[int]:
    """Tokens of pieces whose borders are drawn at random, also within characters."""
    content = text.encode()
    token_ids = []
    while content:
        length = rng.randint(1, 4)
        token_ids += vocabulary.encode_bytes(content[:length])
        content = content[length:]
    return token_ids


def _texts_of_tokens(vocabulary: SmallVocabulary) -> dict[int, str]:
    """The tokens that are whole characters."""
    texts = {}
    for token_id, content in enumerate(vocabulary.token_bytes):
        if content and token_id not in vocabulary.special_token_ids:
            text = content.decode(errors="ignore")
            if text.encode() == content:
                texts[token_id] = text
    return texts


@cache
def _for_hypothesis() -> list[RegexCase]:
    """Those that `re` can read too, without warnings about other readings, and in little time."""
    readable = []
    for case in (*regex_corpus.FORMATS, *regex_corpus.OPERATORS, *regex_corpus.UNICODE):
        if case.reference is None and "[[:" not in case.pattern:
            try:
                re.compile(case.pattern)
            except re.error:
                continue
            readable.append(case)
    return readable


@cache
def _all_characters() -> frozenset[str]:
    return frozenset(
        character for character in map(chr, range(0x110000)) if unicodedata.category(character) not in ("Cn", "Cs")
    )


def _check_message(error: ValueError, field: str) -> None:
    """One sentence that names the field, and is short enough to be read."""
    message = str(error)
    assert field in message
    assert "\n" not in message
    assert len(message) < 1000
