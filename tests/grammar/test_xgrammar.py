"""The xgrammar backend: what it accepts, what it refuses, and that masks and matchers keep to it."""

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.grammar.backend import GrammarMatcher, UnsupportedGrammarError
from pelton.grammar.xgrammar_backend import XgrammarBackend, XgrammarGrammar
from pelton.grammar.xgrammar_ebnf import MAX_CHARACTERS, MAX_PARTS
from pelton.structured_outputs_params import StructuredOutputsParams
from tests.grammar.random_generation import accepts, allowed_tokens, generate
from tests.grammar.small_vocabularies import BYTES, PIECES

pytestmark = pytest.mark.skipif(not XgrammarBackend.is_installed(), reason="xgrammar is an extra")

CLOSED = {"additionalProperties": False}


@cache
def _backend() -> XgrammarBackend:
    return XgrammarBackend(PIECES)


def compiled(**constraint: Any) -> XgrammarGrammar:
    params = StructuredOutputsParams(**constraint, backend="xgrammar")
    XgrammarBackend.check(params)
    return _backend().compile(params)


def is_accepted(grammar: XgrammarGrammar, text: str) -> bool:
    """Byte by byte, and in the longest tokens; masks must agree, too."""
    in_bytes = accepts(grammar, PIECES, PIECES.single_bytes(text))
    assert accepts(grammar, PIECES, PIECES.encode(text)) == in_bytes, text
    return in_bytes


def refusal(**constraint: Any) -> str:
    with pytest.raises(UnsupportedGrammarError) as error:
        XgrammarBackend.check(StructuredOutputsParams(**constraint, backend="xgrammar"))
    message = str(error.value)
    assert message.isprintable()
    assert len(message) < 700
    return message


def test_nothing_is_imported_before_a_grammar_is_compiled() -> None:
    code = (
        "import sys\n"
        "from pelton.grammar.xgrammar_backend import XgrammarBackend\n"
        "from pelton.structured_outputs_params import StructuredOutputsParams\n"
        "assert XgrammarBackend.is_installed()\n"
        "XgrammarBackend.check(StructuredOutputsParams(json={'type': 'object'}))\n"
        "assert not {'xgrammar', 'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Matchers

CONSTRAINTS: list[dict[str, Any]] = [
    {
        "json": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["name"],
        }
    },
    {"json": {"type": "array", "items": {"enum": ["é", "日本", 1.5, None]}, "minItems": 1}},
    {"json": {"type": "string", "minLength": 2, "maxLength": 4}},
    {"json_object": True},
    {"json": {"type": "array", "items": {"type": "string", "minLength": 200}}},
    {"regex": r"(ab|a[^b]c?)*é{1,3}"},
    {"regex": r"[0-9\u2070-\u2079]{1,200}x"},
    {"choice": ["ab", "abc", "😀", "a\nb"]},
    {"grammar": 'root ::= "(" root ")" root | "a"*'},
    {
        "structural_tag": {
            "structures": [{"begin": "<a>", "schema": {"type": "integer"}, "end": "</a>"}],
            "triggers": ["<a"],
        }
    },
]


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda constraint: next(iter(constraint)))
def test_masks_have_exactly_the_tokens_that_are_accepted(constraint: dict[str, Any]) -> None:
    grammar = compiled(**constraint)
    rng = random.Random(1)
    for _ in range(3):
        token_ids = generate(grammar, PIECES, rng, max_tokens=12, preferred=PIECES.plain_token_ids).token_ids
        matcher = grammar.new_matcher()
        for token_id in token_ids:
            assert allowed_tokens(matcher, PIECES) == _accepted_tokens(matcher)
            assert matcher.accept(token_id)


def _accepted_tokens(matcher: GrammarMatcher) -> list[int]:
    found = []
    for token_id in range(PIECES.vocab_size):
        if matcher.accept(token_id):
            matcher.rollback(1)
            found.append(token_id)
    return found


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda constraint: next(iter(constraint)))
def test_rollback_restores_masks(constraint: dict[str, Any]) -> None:
    grammar = compiled(**constraint)
    token_ids = generate(grammar, PIECES, random.Random(2), max_tokens=10).token_ids
    matcher = grammar.new_matcher()
    masks = [(allowed_tokens(matcher, PIECES), matcher.is_accepting)]
    for token_id in token_ids:
        assert matcher.accept(token_id)
        masks.append((allowed_tokens(matcher, PIECES), matcher.is_accepting))
    for length in range(len(token_ids) + 1):
        matcher.rollback(length)
        assert (allowed_tokens(matcher, PIECES), matcher.is_accepting) == masks[len(token_ids) - length]
        assert all(map(matcher.accept, token_ids[len(token_ids) - length :]))


@pytest.mark.parametrize(
    ("low", "high"), [(0, 127), (0, 128), (0, 191), (0, 200), (1, 300), (130, 140), (200, None), (64, 192)]
)
def test_counts_in_blocks(low: int, high: int | None) -> None:
    grammar = compiled(regex=f"[0-9\\u2070]{{{low},{'' if high is None else high}}}")
    for length in (0, 1, 63, 64, 127, 128, 129, 130, 140, 141, 191, 192, 193, 199, 200, 201, 300, 301):
        matcher = grammar.new_matcher()
        is_accepted = all(matcher.accept(token_id) for token_id in PIECES.single_bytes("7" * length))
        assert (is_accepted and matcher.is_accepting) == (low <= length <= (length if high is None else high)), length


def test_the_end_and_back() -> None:
    matcher = compiled(choice=["ab", "a"]).new_matcher()
    assert not matcher.is_accepting
    assert all(map(matcher.accept, PIECES.single_bytes("a")))
    assert matcher.is_accepting
    assert allowed_tokens(matcher, PIECES) == sorted({*PIECES.single_bytes("b")} | _same_text(PIECES.single_bytes("b")))
    assert all(map(matcher.accept, PIECES.single_bytes("b")))
    assert matcher.is_accepting
    assert allowed_tokens(matcher, PIECES) == []
    for token_id in (*PIECES.special_token_ids, *PIECES.single_bytes("b"), PIECES.vocab_size, -1, 2**40):
        assert not matcher.accept(token_id)
    matcher.rollback(2)
    assert not matcher.is_accepting
    assert is_accepted(compiled(choice=["ab", "a"]), "ab")


def _same_text(token_ids: list[int]) -> set[int]:
    texts = {PIECES.token_bytes[token_id] for token_id in token_ids}
    return {index for index, text in enumerate(PIECES.token_bytes) if text in texts and index > 1}


def test_a_mask_of_all_tokens() -> None:
    """There is a bit for each token that has text, and none for the others."""
    backend = XgrammarBackend(BYTES)
    matcher = backend.compile(StructuredOutputsParams(regex=r"[\x00-\x{10ffff}]*")).new_matcher()
    first_bytes = {*range(0x80), *range(0xC2, 0xF5)}
    assert set(allowed_tokens(matcher, BYTES)) == first_bytes


def test_compiling_in_several_threads() -> None:
    schemas = [{"type": "array", "items": {"enum": [f"value {index}"]}} for index in range(16)]
    with ThreadPoolExecutor(4) as pool:
        grammars = list(pool.map(lambda schema: compiled(json=schema), schemas))
    for index, grammar in enumerate(grammars):
        assert is_accepted(grammar, f'["value {index}"]')
        assert not is_accepted(grammar, f'["value {index + 1}"]')


# Schemas

KEPT: list[tuple[Any, list[str], list[str]]] = [
    (True, ["1", '{"a": [1, null]}', '"x"'], ["", "nul", "{,}"]),
    ({"type": "string"}, ['""', '"é\\n\\u00e9\\ud83d\\ude00/\\/"'], ['"\n"', '"\\ud83d"', '"\\ud83dx"', '"\\x"', "a"]),
    ({"type": "string", "maxLength": 2}, ['""', '"é😀"', '"\\n\\u00e9"'], ['"abc"', '"a\tb"', '"a\\u00e9\\n"']),
    (
        {"type": "string", "minLength": 40, "maxLength": 60},
        [f'"{"é" * 40}"', f'"{"a" * 60}"'],
        [f'"{"a" * 39}"', f'"{"a" * 61}"'],
    ),
    ({"type": "string", "minLength": 2}, ['"ab"', '"abc"'], ['"a"', '"\\n"']),
    ({"type": "string", "pattern": "^a+$"}, ['"aa"'], ['"b"', '""', '"ab"']),
    ({"type": "string", "pattern": "a|^b$"}, ['"xax"', '"b"'], ['"bx"', '"x"']),
    ({"type": "string", "pattern": '^["\\\\\\n]$'}, ['"\\""', '"\\\\"', '"\\n"'], ['"""', '"\\"', '"\n"']),
    ({"type": "string", "pattern": "^[^a]$"}, ['"é"', '"\\t"', '"\\u0001"'], ['"a"', '"\x01"', '""']),
    ({"type": "string", "pattern": "^a{3}$", "minLength": 1, "maxLength": 3}, ['"aaa"'], ['"a"']),
    ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"x"']),
    ({"type": "integer"}, ["0", "-17", "100"], ["1.0", "01", "1e3", "+1", "-"]),
    ({"type": "number"}, ["0", "-0.5", "1e9", "1.5E-3"], [".5", "1.", "00", "e5"]),
    ({"type": "number", "minimum": 3, "type_": 1}, ["3", "3.0", "17.25"], ["2.999999", "-3", "1e9"]),
    ({"type": "integer", "exclusiveMinimum": 2.5, "maximum": 11}, ["3", "10", "11"], ["2", "12", "-3", "111"]),
    ({"type": "integer", "multipleOf": 7}, ["0", "-14", "70"], ["1", "15"]),
    ({"type": "integer", "multipleOf": 12, "minimum": 0}, ["0", "144"], ["-12", "13"]),
    ({"type": "integer", "multipleOf": 5, "minimum": -7, "maximum": 11}, ["-5", "0", "10"], ["-10", "15", "4"]),
    ({"type": "integer", "multipleOf": 5, "minimum": -7}, ["-5", "0", "100"], ["-10", "4", "-50"]),
    ({"type": "number", "multipleOf": 2}, ["4", "-2"], ["3", "4.5"]),
    ({"minimum": 3}, ["3", '"x"', "null", '{"a":1}'], ["2"]),
    ({"type": ["integer", "null"], "minimum": 3}, ["3", "null"], ["2", '"x"']),
    (
        {"const": {"a": [1, "é"], "b": {}}},
        ['{"a":[1,"é"],"b":{}}', '{"a": [1, "é"], "b": {}}'],
        ['{"a":[1],"b":{}}', "{}"],
    ),
    ({"enum": [1, "1", None, [], 1e22]}, ["1", '"1"', "null", "[]", "1e+22"], ["2", "true"]),
    ({"enum": [1, "a", True, 2.5], "type": "integer"}, ["1"], ['"a"', "true", "2.5"]),
    ({"const": 2, "enum": [1, 2.0]}, ["2.0"], ["1"]),
    ({"type": "array", "maxItems": 2}, ["[]", "[1,[]]"], ["[1,2,3]", "[1,]"]),
    (
        {"items": {"type": "null"}, "type": "array", "minItems": 2},
        ["[null,null]", "[null, null, null]"],
        ["[null]", "[]"],
    ),
    (
        {"type": "array", "prefixItems": [{"type": "null"}, {"const": 1}]},
        ["[]", "[null]", "[null,1,2]"],
        ["[1]", "[null,2]"],
    ),
    (
        {"type": "array", "prefixItems": [{"type": "null"}, {"const": 1}], "items": False, "minItems": 1},
        ["[null]", "[null,1]"],
        ["[]", "[null,1,1]"],
    ),
    ({"type": "array", "prefixItems": [True, True], "maxItems": 1}, ["[]", "[1]"], ["[1,2]"]),
    ({"type": "array", "prefixItems": [False]}, ["[]"], ["[1]"]),
    (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "array",
            "items": [{"const": 1}],
            "additionalItems": False,
        },
        ["[1]", "[]"],
        ["[1,1]", "[2]"],
    ),
    ({"type": "array", "uniqueItems": True, "maxItems": 1}, ["[1]"], ["[1,1]"]),
    ({"type": "object"}, ["{}", '{"a":1,"b":{"c":[]}}', '{ "a": 1 }'], ["[]", '{"a"}', "{a:1}"]),
    (
        {"type": "object", "properties": {"a": {"const": 1}, "b": {}}, **CLOSED},
        ["{}", '{"a":1}', '{"b":2}', '{"a":1,"b":2}'],
        ['{"a":2}', '{"c":1}', '{"b":2,"a":1}'],
    ),
    (
        {"type": "object", "properties": {"a": {"const": 1}}},
        ['{"a":1,"b":2}', '{"b":2}', '{"ab":1,"":0,"\\n":1}'],
        ['{"b":2,"a":2}', '{"\\u0061":2}', '{"a":1,"a":1}'],
    ),
    (
        {"type": "object", "properties": {"a": True, 'a"b': {"const": 1}, "a\\": {"const": 1}}},
        ['{"a\\"b":1}', '{"a\\\\":1}', '{"ac":2}'],
        ['{"a\\"b":2}', '{"a\\\\":2}', '{"a\\u0022b":2}'],
    ),
    ({"type": "object", "properties": {"": {"const": 1}}}, ['{"":1}', '{"x":2}'], ['{"":2}']),
    (
        {"type": "object", "required": ["b", "a"]},
        ['{"b":1,"a":2}', '{"b":1,"a":2,"c":3}'],
        ["{}", '{"b":1}', '{"c":1}'],
    ),
    (
        {"type": "object", "properties": {"a": {}}, "required": ["b"], "additionalProperties": {"type": "null"}},
        ['{"a":1,"b":null}', '{"b":null,"c":null}'],
        ['{"a":1}', '{"b":1}', '{"b":null,"c":1}'],
    ),
    ({"type": "object", "additionalProperties": {"type": "null"}}, ['{"a":null}', "{}"], ['{"a":1}']),
    ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False}, ['{"a":1}'], ['{"b":1}']),
    ({"type": "object", "patternProperties": {"^x": {"type": "null"}}}, ["{}", '{"x":null,"xy":null}'], ['{"xy":1}']),
    ({"type": "object", "propertyNames": {"maxLength": 2}}, ['{"ab":1}', "{}"], ['{"abc":1}']),
    (
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"const": 1}},
        ['{"b":1}'],
        ['{"c":1}', '{"a":2}'],
    ),
    ({"type": "object", "minProperties": 1}, ['{"a":1}'], ["{}"]),
    ({"type": "object", "maxProperties": 1}, ['{"a":1}', "{}"], ['{"a":1,"b":1}']),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, ["null"], ["1"]),
    (
        {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            "required": ["next"],
            **CLOSED,
        },
        ['{"next":{"next":null}}'],
        ['{"next":{}}', "{}"],
    ),
    ({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}]}, ["[[],[null]]"], ["1", "[1]"]),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "object", "properties": {"b": {"$ref": "#/properties/a"}}, "required": ["b"]}},
            **CLOSED,
        },
        ["{}"],
        ['{"a":{}}'],
    ),
    ({"oneOf": [{"type": "null"}, {"type": "string"}]}, ["null", '"a"'], ["1"]),
    ({"oneOf": [{"const": 1}, {"enum": [2, 3]}, {"type": "string"}]}, ["1", "3", '"a"'], ["4"]),
    (
        {
            "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
            "discriminator": {"propertyName": "kind"},
            "$defs": {
                "cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
                "dog": {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"], **CLOSED},
            },
        },
        ['{"kind":"cat","x":1}', '{"kind":"dog"}'],
        ['{"kind":"dog","x":1}', '{"kind":"cow"}'],
    ),
    ({"allOf": [{"type": "null"}]}, ["null"], ["1"]),
    ({"allOf": [True, {"type": "null"}, {}], "title": "nothing"}, ["null"], ["1"]),
    ({"type": "string", "anyOf": [{"enum": ["a"]}, {"type": "string", "pattern": "^b"}]}, ['"a"', '"bc"'], ['"c"']),
    ({"type": "integer", "title": "x", "default": "y", "examples": [1], "x-unknown": 5}, ["1"], ['"y"']),
]


@pytest.mark.parametrize(("schema", "instances", "others"), KEPT, ids=lambda value: json.dumps(value)[:60])
def test_schemas(schema: Any, instances: list[str], others: list[str]) -> None:
    grammar = compiled(json=schema)
    assert [text for text in instances if not is_accepted(grammar, text)] == []
    assert [text for text in others if is_accepted(grammar, text)] == []


@pytest.mark.parametrize("schema", [schema for schema, _, _ in KEPT], ids=lambda value: json.dumps(value)[:60])
def test_outputs_are_instances(schema: Any) -> None:
    grammar = compiled(json=schema)
    rng = random.Random(json.dumps(schema))
    validator = jsonschema.validators.validator_for(schema)(schema, format_checker=jsonschema.FormatChecker())
    for _ in range(8):
        output = generate(grammar, PIECES, rng, max_tokens=30, stop_chance=0.5, preferred=PIECES.plain_token_ids)
        if output.is_complete:
            validator.validate(json.loads(PIECES.decode(output.token_ids)))


REFUSED: list[tuple[Any, str, str]] = [
    ({"properties": {"tags": {"type": "array", "uniqueItems": True}}}, "uniqueItems", "/properties/tags"),
    ({"not": {"type": "null"}}, "not", "the top"),
    ({"if": {}, "then": {}}, "if", "the top"),
    ({"items": {"contains": {"const": 1}}}, "contains", "/items"),
    ({"dependentRequired": {"a": ["b"]}}, "dependentRequired", "the top"),
    ({"$dynamicRef": "#a"}, "$dynamicRef", "the top"),
    ({"allOf": [{"type": "string"}, {"maxLength": 3}]}, "allOf", "the top"),
    ({"anyOf": [{"minimum": 1}], "type": "number"}, "anyOf", "the top"),
    ({"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": {"type": "integer"}}}, "$ref", "the top"),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf", "the top"),
    ({"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "oneOf", "the top"),
    ({"type": "number", "multipleOf": 0.1}, "multipleOf", "the top"),
    ({"type": "integer", "multipleOf": 100_000}, "multipleOf", "the top"),
    ({"type": "integer", "multipleOf": 7, "minimum": 10**9}, "multipleOf", "the top"),
    ({"type": "number", "minimum": 1e-9, "maximum": 123456789.5}, "minimum", "the top"),
    ({"type": "number", "maximum": 1e300}, "maximum", "the top"),
    ({"type": "string", "pattern": "a", "minLength": 5}, "minLength", "the top"),
    ({"type": "string", "pattern": "a", "maxLength": 5}, "maxLength", "the top"),
    ({"type": "string", "pattern": "^(?=a)"}, "pattern", "the top"),
    ({"type": "string", "format": "regex"}, "format", "the top"),
    ({"type": "string", "format": "date", "pattern": "1"}, "format", "the top"),
    ({"type": "string", "maxLength": 10**7}, "maxLength", "the top"),
    ({"enum": [1], "minimum": 0}, "minimum", "the top"),
    ({"properties": {"a": {}}, "patternProperties": {"b": {}}}, "patternProperties", "the top"),
    ({"patternProperties": {"b": {}, "c": {}}}, "patternProperties", "the top"),
    ({"properties": {"a": {}}, "propertyNames": {"maxLength": 3}}, "propertyNames", "the top"),
    ({"type": "object", "minProperties": 10**6}, "minProperties", "the top"),
    ({"$ref": "https://example.com/schema"}, "$ref", "the top"),
    ({"$ref": "#/$defs/none"}, "$ref", "the top"),
    ({"type": "strnig"}, "type", "the top"),
    ({"type": "array", "minItems": -1}, "minItems", "the top"),
    ({"type": "integer", "minimum": "3"}, "minimum", "the top"),
    ({"type": "object", "required": "a"}, "required", "the top"),
    ({"properties": {"a/b": {"items": [1]}}}, "items", "/properties/a~1b"),
]


@pytest.mark.parametrize(("schema", "keyword", "place"), REFUSED, ids=lambda value: json.dumps(value)[:60])
def test_what_cannot_be_kept_is_refused_by_keyword_and_place(schema: Any, keyword: str, place: str) -> None:
    message = refusal(json=schema)
    assert message.startswith("json: ")
    assert keyword in message
    assert place in message


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "number", "exclusiveMinimum": 5, "maximum": 5},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "array", "minItems": 2, "items": False},
        {"type": "object", "properties": {"a": {}}, "required": ["b"], "additionalProperties": False},
        {"type": "object", "minProperties": 2},
        {"enum": ["a"], "type": "integer"},
        {"enum": []},
    ],
    ids=json.dumps,
)
def test_schemas_without_instances_are_refused(schema: Any) -> None:
    assert "no text can meet the constraint" in refusal(json=schema)


def test_references_in_a_circle() -> None:
    grammar = compiled(json={"anyOf": [{"$ref": "#"}, {"type": "null"}]})
    assert is_accepted(grammar, "null")
    assert not is_accepted(grammar, "1")


def test_counted_members() -> None:
    """All ways to have some of four members, one of them required."""
    names = "abcd"
    properties = {name: {"const": 1} for name in names}
    for least, most in ((0, 2), (2, 3), (3, None), (0, 4), (4, 4), (1, 1)):
        bounds = {"minProperties": least} | ({} if most is None else {"maxProperties": most})
        schema = {"type": "object", "properties": properties, "required": ["c"], **bounds, **CLOSED}
        grammar = compiled(json=schema)
        for chosen in product((False, True), repeat=4):
            taken = [name for name, is_taken in zip(names, chosen, strict=True) if is_taken]
            text = json.dumps(dict.fromkeys(taken, 1), separators=(",", ":"))
            is_instance = "c" in taken and least <= len(taken) <= (4 if most is None else most)
            assert accepts(grammar, PIECES, PIECES.encode(text)) == is_instance, (schema, text)


def test_repeated_names_do_not_count_as_more() -> None:
    grammar = compiled(json={"type": "object", "properties": {"a": {"const": 1}}, "minProperties": 2})
    assert is_accepted(grammar, '{"a":1,"b":1}')
    assert is_accepted(grammar, '{"a":1,"b":1,"b":1}')
    assert not is_accepted(grammar, '{"b":1,"b":1}')


_BOUNDS = st.decimals(-200, 200, places=2) | st.decimals(-2, 2, places=3) | st.sampled_from([0, 10, 99, 100, -1, -100])


@settings(max_examples=60, deadline=None)
@given(low=st.none() | _BOUNDS, high=st.none() | _BOUNDS, exclusive=st.booleans(), data=st.data())
def test_bounds_of_numbers(low: Any, high: Any, exclusive: bool, data: st.DataObject) -> None:
    """Exactly the numbers between the bounds, if they are written with up to six places and no exponent."""
    words = ("exclusiveMinimum", "exclusiveMaximum") if exclusive else ("minimum", "maximum")
    bounds = {word: float(bound) for word, bound in zip(words, (low, high), strict=True) if bound is not None}
    kind = data.draw(st.sampled_from(["number", "integer"]))

    def is_between(text: str) -> bool:
        number = Fraction(text)
        lower = low is None or (number > Fraction(low) if exclusive else number >= Fraction(low))
        upper = high is None or (number < Fraction(high) if exclusive else number <= Fraction(high))
        return lower and upper

    near = [str(bound + step) for bound in (low, high) if bound is not None for step in (0, 1, -1)]
    numbers = (
        st.sampled_from(near or ["0"]) | st.decimals(-250, 250, places=2).map(str) | st.integers(-1000, 1000).map(str)
    )
    texts = [text for text in data.draw(st.lists(numbers, max_size=12)) if "E" not in text and float(text)]
    if kind == "integer":
        texts = [text for text in texts if "." not in text]
    if not any(map(is_between, texts)):
        return  # perhaps there is nothing between them
    grammar = compiled(json={"type": kind, **bounds})
    for text in texts:
        assert accepts(grammar, PIECES, PIECES.encode(text)) == is_between(text), (bounds, text)
    output = generate(grammar, PIECES, random.Random(1), max_tokens=12, stop_chance=0.5)
    if output.is_complete:
        assert is_between(PIECES.decode(output.token_ids).decode()) or not bounds


def test_space() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}
    spaced = ['{"a":[1,2]}', '{"a": [1, 2]}', '{\n  "a": [\n    1,\n    2\n  ]\n}', '{ "a" : [ ] }']
    grammar = compiled(json=schema)
    assert all(is_accepted(grammar, text) for text in spaced)
    assert not any(is_accepted(grammar, text) for text in (' {"a":[]}', '{"a":[]} ', '{"a":   []}', '{"a":\n\n[]}'))
    tight = compiled(json=schema, disable_any_whitespace=True)
    assert [is_accepted(tight, text) for text in spaced] == [True, False, False, False]
    patterned = compiled(json=schema, whitespace_pattern="[ ]{0,1}")
    assert [is_accepted(patterned, text) for text in spaced] == [True, True, False, True]
    assert "whitespace_pattern" in refusal(json=schema, whitespace_pattern="x?")


def test_only_named_properties() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "object"},
            "b": {"properties": {}, "additionalProperties": True, "type": "object"},
        },
    }
    grammar = compiled(json=schema, disable_additional_properties=True)
    assert is_accepted(grammar, '{"a":{"x":1},"b":{"y":1}}')
    assert not is_accepted(grammar, '{"c":1}')
    assert is_accepted(compiled(json=schema), '{"c":1}')


def test_json_object() -> None:
    grammar = compiled(json_object=True)
    assert is_accepted(grammar, '{"a": {"b": [1, "x"]}}')
    assert not is_accepted(grammar, "[]")


# Other kinds


def test_choice() -> None:
    words = ["a", "ab", 'say "é"\\\n', "\u2028]", "[a-z]", "😀"]
    grammar = compiled(choice=[*words, "a"])
    assert all(is_accepted(grammar, word) for word in words)
    assert not any(is_accepted(grammar, text) for text in ("", "b", "aba", "é"))


GRAMMARS = [
    ('root ::= "a" | "b" "c"*', ["a", "b", "bcc"], ["ab", ""]),
    ('root ::= x{2} y{1,} z{0,2} # comment\nx::="x"\ny ::= [y-z]\nz ::= ("z" | )', ["xxy", "xxyyzz"], ["xy", "xx"]),
    ('root ::=\n  "a"\n  | item-1\nitem-1 ::= [^a\\]\\-é]', ["a", "b", "😀"], ["]", "-", "é"]),
    (r'root ::= "\x41\n\u00e9\U0001F600\"\\\t" [\x30-\x39]', ['A\né😀"\\\t7'], ["A"]),
    ('root ::= root "a" | "b"', ["b", "baa"], ["a", ""]),
    ('root ::= (("a"*)*)* .', ["aab", "\n"], ["", "bb"]),
    ('root ::= "a" loop | "b"\nloop ::= "c" loop', ["b"], ["a"]),
    ('root ::= "TagDispatch" end\nend ::= ""', ["TagDispatch"], [""]),
]


@pytest.mark.parametrize(("text", "matches", "others"), GRAMMARS)
def test_grammars(text: str, matches: list[str], others: list[str]) -> None:
    grammar = compiled(grammar=text)
    assert [match for match in matches if not is_accepted(grammar, match)] == []
    assert [other for other in others if is_accepted(grammar, other)] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('start: "a" | "b"', ["Lark", "llguidance"]),
        ('x ::= "a"', ["root"]),
        ('root ::= y "a"', ["y", "line 1"]),
        ('root ::= "a"\nroot ::= "b"', ["root", "line 2"]),
        ('root ::= "a', ["line 1"]),
        ("root ::= [a", ["line 1"]),
        ('root ::= ("a"', [")"]),
        ('root ::= "a")', ["line 1"]),
        ('root ::= "a"*?', ["repetition"]),
        ('root ::= "a"{3,2}', ["3 to 2"]),
        ('root ::= "a"{1000000}', ["100000"]),
        ("root ::= ", ["::="]),
        ("root ::= [z-a]", ["range"]),
        (r'root ::= "\d"', ["escape"]),
        (r'root ::= "\ud800"', ["character"]),
        ('root ::= "a" (= "b")', ["line 1"]),
        ('root ::= TagDispatch(("a", b))\nb ::= "x"', ["line 1"]),
        ("root ::= <think>", ["line 1"]),
        ("root ::= root", ["no text"]),
        ('root ::= "a" root', ["no text"]),
    ],
)
def test_grammars_that_are_refused(text: str, words: list[str]) -> None:
    message = refusal(grammar=text)
    assert message.startswith("grammar: ")
    assert all(word in message for word in words), message


LEGACY = {
    "type": "structural_tag",
    "structures": [
        {
            "begin": "<fn=a>",
            "schema": {"type": "object", "properties": {"x": {"type": "integer"}}, **CLOSED},
            "end": "</fn>",
        },
        {"begin": "<fn=b>", "schema": {"type": "null"}, "end": "</fn>"},
    ],
    "triggers": ["<fn="],
}


def test_tags_in_free_text() -> None:
    grammar = compiled(structural_tag=LEGACY)
    for text in ("", "some < text", 'before<fn=a>{"x": 1}</fn>é<fn=b>null</fn> after', "<fn"):
        assert is_accepted(grammar, text), text
    for text in ("<fn=c>", "<fn=a>", '<fn=a>{"x":""}</fn>', "x<fn=b>1</fn>", "<fn=a>{}</fn", "<fn="):
        assert not is_accepted(grammar, text), text


FORMATS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"type": "const_string", "value": "ab"}, ["ab"], ["a", "abc"]),
    ({"type": "regex", "pattern": "^a[bc]$"}, ["ab"], ["a", "ad"]),
    ({"type": "grammar", "grammar": 'root ::= "a" root | "b"'}, ["aab"], ["aa"]),
    ({"type": "json_schema", "json_schema": {"type": "integer"}}, ["12"], ["1.5"]),
    (
        {"type": "or", "elements": [{"type": "const_string", "value": "a"}, {"type": "const_string", "value": "b"}]},
        ["a", "b"],
        ["ab"],
    ),
    (
        {
            "type": "sequence",
            "elements": [{"type": "const_string", "value": "a"}, {"type": "regex", "pattern": "[0-9]+"}],
        },
        ["a12"],
        ["a", "12"],
    ),
    ({"type": "optional", "content": {"type": "const_string", "value": "a"}}, ["", "a"], ["aa"]),
    ({"type": "plus", "content": {"type": "const_string", "value": "a"}}, ["a", "aa"], [""]),
    ({"type": "star", "content": {"type": "const_string", "value": "a"}}, ["", "aa"], ["b"]),
    (
        {"type": "repeat", "min": 2, "max": 3, "content": {"type": "const_string", "value": "a"}},
        ["aa", "aaa"],
        ["a", "aaaa"],
    ),
    (
        {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"},
        ["<t></t>", "<t>a < b</t>"],
        ["<t>", "<t>a</t>b", "a"],
    ),
    (
        {"type": "tag", "begin": "<t>", "content": {"type": "regex", "pattern": "a*"}, "end": ["</t>", "</s>"]},
        ["<t>aa</s>", "<t></t>"],
        ["<t>b</t>"],
    ),
    (
        {
            "type": "triggered_tags",
            "triggers": ["<t"],
            "at_least_one": True,
            "stop_after_first": True,
            "tags": [{"begin": "<t>", "content": {"type": "regex", "pattern": "a*"}, "end": "</t>"}],
        },
        ["<t>a</t>"],
        ["", "x", "<t>a</t>x", "<t>a</t><t>a</t>"],
    ),
    (
        {
            "type": "tags_with_separator",
            "separator": ",",
            "tags": [{"begin": "<t>", "content": {"type": "regex", "pattern": "a*"}, "end": "</t>"}],
        },
        ["", "<t></t>", "<t>a</t>,<t></t>"],
        ["<t></t>,", "<t></t><t></t>"],
    ),
]


@pytest.mark.parametrize(("form", "matches", "others"), FORMATS, ids=lambda value: json.dumps(value)[:40])
def test_formats_of_tags(form: dict[str, Any], matches: list[str], others: list[str]) -> None:
    grammar = compiled(structural_tag={"type": "structural_tag", "format": form})
    assert [text for text in matches if not is_accepted(grammar, text)] == []
    assert [text for text in others if is_accepted(grammar, text)] == []


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ({"type": "other", "format": {}}, ["type"]),
        ({"format": {"type": "token", "token": 5}}, ["format", "/format"]),
        ({"format": {"type": "const_string", "value": ""}}, ["value"]),
        ({"format": {"type": "any_text", "max_tokens": 5}}, ["max_tokens"]),
        ({"format": {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}}, ["style"]),
        ({"format": {"type": "json_schema", "json_schema": {"not": {}}}}, ["not", "/format/json_schema"]),
        ({"format": {"type": "grammar", "grammar": 'root ::= "a"', "syntax": "lark"}}, ["syntax"]),
        ({"structures": [], "triggers": ["a"]}, ["structures"]),
        ({"structures": [{"begin": "<a>", "schema": {}, "end": "b"}], "triggers": ["<b"]}, ["triggers"]),
        ({"structures": [{"begin": "<a>", "schema": {}, "end": ""}], "triggers": ["<a"]}, ["end"]),
        (
            {"structures": [{"begin": "<a>", "schema": False, "end": "b"}], "triggers": ["<a"]},
            ["no text", "/structures/0"],
        ),
        ({"structures": [{"begin": "<a>", "schema": {}, "end": "b"}], "triggers": ["<a", "<a>"]}, ["triggers"]),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_tags_that_are_refused(tag: dict[str, Any], words: list[str]) -> None:
    message = refusal(structural_tag=tag)
    assert message.startswith("structural_tag: ")
    assert all(word in message for word in words), message


# Limits


def _nested(schema: dict[str, Any], levels: int) -> dict[str, Any]:
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "(" * 200 + "a" + ")" * 200},
        {"regex": "((a{0,100}){0,100}){0,100}"},
        {"regex": "(([a-z]{0,10}){0,30}){0,30}"},
        {"regex": "a{200000}"},
        {"grammar": "root ::= " + "(" * 200 + '"a"' + ")" * 200},
        {"grammar": 'root ::= a{100}\na ::= b{100}\nb ::= "a"{0,100}'},
        {
            "grammar": "root ::= r0"
            + "".join(f'\nr{i} ::= "a" "b" "c" r{i + 1}' for i in range(9_000))
            + '\nr9000 ::= ""'
        },
        {"choice": [f"{index:06d}" for index in range(MAX_PARTS)]},
        {"choice": ["x" * (MAX_CHARACTERS // 2), "y" * (MAX_CHARACTERS // 2), "z"]},
        {"json": {"enum": ["x" * MAX_CHARACTERS, ""]}},
        {"json": _nested({"type": "null"}, 100)},
        {"json": {"type": "object", "properties": {f"p{index}": {} for index in range(20_000)}}},
        {"json": {"type": "string", "pattern": "((a{0,100}){0,100}){0,100}"}},
    ],
    ids=lambda constraint: str(constraint)[:50],
)
def test_what_would_take_too_long_is_refused(constraint: dict[str, Any]) -> None:
    assert refusal(**constraint).startswith(next(iter(constraint)))


def test_what_xgrammar_itself_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    params = StructuredOutputsParams(choice=["a"])
    monkeypatch.setattr("pelton.grammar.xgrammar_backend._source", lambda params: "root ::= unknown")
    with pytest.raises(UnsupportedGrammarError, match=r"^choice: xgrammar cannot compile it: [^\n]*unknown") as error:
        _backend().compile(params)
    assert "/project" not in str(error.value)
