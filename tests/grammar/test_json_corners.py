"""JSON where it is hard: keys and strings with escapes and emoji, ten thousand choices, depth, recursion."""

import json
import random

import pytest

from pelton.grammar.backend import CompiledGrammar, UnsupportedGrammarError
from pelton.structured_outputs_params import StructuredOutputsParams
from tests.grammar.installed_backends import compiled, each_backend
from tests.grammar.random_generation import accepts, generate
from tests.grammar.small_vocabularies import PIECES

STRANGE_KEYS = (
    "😀",
    "👩‍👩‍👧",
    "é",
    "e\u0301",
    'a"b',
    "a\\b",
    "a/b",
    "line\nbreak",
    "tab\t",
    "",
    " ",
    "$ref",
    "日本",
    "\u2028",
    "__proto__",
    "{",
    "}:,",
)


@each_backend
@pytest.mark.parametrize("key", STRANGE_KEYS)
def test_strange_keys(backend, key):
    schema = {"type": "object", "properties": {key: {"const": 1}}, "required": [key], "additionalProperties": False}
    grammar = _grammar(backend, schema)
    assert _accepts(grammar, json.dumps({key: 1}, ensure_ascii=False))
    assert not _accepts(grammar, json.dumps({key + "x": 1}, ensure_ascii=False))
    for seed in range(5):
        output = generate(grammar, PIECES, random.Random(seed), max_tokens=200)
        assert output.is_complete
        assert json.loads(PIECES.decode(output.token_ids)) == {key: 1}


@each_backend
@pytest.mark.parametrize(
    "value", [*STRANGE_KEYS, 1, -1, 0, 1.5, 10**15, True, None, [], {}, [1, "😀"], {"a": {"b": []}}], ids=repr
)
def test_strange_constants(backend, value):
    grammar = _grammar(backend, {"const": value})
    assert _accepts(grammar, json.dumps(value, ensure_ascii=False))
    for seed in range(5):
        output = generate(grammar, PIECES, random.Random(seed), max_tokens=200)
        assert output.is_complete
        written = json.loads(PIECES.decode(output.token_ids))
        assert written == value
        assert isinstance(written, bool) == isinstance(value, bool)


@each_backend
def test_strings_are_json_whatever_escapes_they_have(backend):
    grammar = _grammar(backend, {"type": "string"})
    for text in ('""', '"é😀"', r'"\"\\\b\f\n\r\t"'):
        json.loads(text)
        assert _accepts(grammar, text), text
    for text in ('"', '"\n"', r'"\x41"', r'"\u12"', '"a"b', "'a'", '"\x00"'):
        assert not _accepts(grammar, text), text
    for seed in range(60):
        output = generate(grammar, PIECES, random.Random(seed), max_tokens=40, stop_chance=1)
        if output.is_complete:
            written = json.loads(PIECES.decode(output.token_ids))
            assert isinstance(written, str)
            written.encode()  # no half of a surrogate pair


@each_backend
@pytest.mark.parametrize("constraint", ["enum", "choice"])
def test_ten_thousand_choices(backend, constraint):
    texts = [f"item {index} é😀" if index % 3 else f"item {index}" for index in range(10_000)]
    grammar = _grammar(backend, {"enum": texts}) if constraint == "enum" else _choice(backend, texts)
    written = [json.dumps(text, ensure_ascii=False) if constraint == "enum" else text for text in texts]
    for text in written[::997]:
        assert _accepts(grammar, text)
    assert not _accepts(grammar, written[0][:-1])
    assert not _accepts(grammar, written[-1].replace("9999", "10000"))
    for seed in range(20):
        output = generate(grammar, PIECES, random.Random(seed), max_tokens=80)
        assert output.is_complete
        text = PIECES.decode(output.token_ids).decode()
        assert (json.loads(text) if constraint == "enum" else text) in texts


@each_backend
@pytest.mark.parametrize("num_levels", [20, 100])
def test_many_levels(backend, num_levels):
    """A schema that is deeper than what is kept is refused."""
    schema: dict = {"type": "integer"}
    value: object = 7
    for level in range(num_levels):
        if level % 2:
            schema, value = {"type": "array", "items": schema, "minItems": 1, "maxItems": 2}, [value]
        else:
            schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
            value = {"a": value}
    if num_levels == 100:
        with pytest.raises(UnsupportedGrammarError, match="nested"):
            _grammar(backend, schema)
        return
    grammar = _grammar(backend, schema)
    text = json.dumps(value)
    assert _accepts(grammar, text)
    assert not _accepts(grammar, text.replace("7", "null"))
    assert not _accepts(grammar, text[:-1])


@each_backend
def test_recursion_through_references(backend):
    tree = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["v", "children"],
                "additionalProperties": False,
            }
        },
    }
    grammar = _grammar(backend, tree)
    value: dict = {"v": 0, "children": []}
    for depth in range(1, 60):
        value = {"v": depth, "children": [value, {"v": -depth, "children": []}]}
    text = json.dumps(value)
    assert _accepts(grammar, text)
    assert not _accepts(grammar, text.replace('"v": 30', '"w": 30'))
    for seed in range(20):
        output = generate(grammar, PIECES, random.Random(seed), max_tokens=150, stop_chance=1)
        if output.is_complete:
            _check_tree(json.loads(PIECES.decode(output.token_ids)))


@each_backend
def test_any_object(backend):
    grammar = compiled(backend, StructuredOutputsParams(json_object=True, backend=backend))
    for text in ("{}", '{"😀": [1, {"a": null}], "\\n": "x"}', '{"a":{"a":{"a":{}}}}'):
        assert _accepts(grammar, text), text
    for text in ("[]", "1", '{"a"}', "{'a': 1}", '{"a": 1,}', '{"a": NaN}', '{"a": 01}', "{} {}"):
        assert not _accepts(grammar, text), text
    for seed in range(60):
        output = generate(grammar, PIECES, random.Random(seed), max_tokens=60, stop_chance=1)
        if output.is_complete:
            assert isinstance(json.loads(PIECES.decode(output.token_ids)), dict)


def _check_tree(node: dict) -> None:
    assert node.keys() == {"v", "children"}
    assert isinstance(node["v"], int)
    for child in node["children"]:
        _check_tree(child)


def _accepts(grammar: CompiledGrammar, text: str) -> bool:
    in_pieces = accepts(grammar, PIECES, PIECES.encode(text))
    assert accepts(grammar, PIECES, PIECES.single_bytes(text)) == in_pieces
    return in_pieces


def _grammar(backend: str, schema: dict) -> CompiledGrammar:
    return compiled(backend, StructuredOutputsParams(json=schema, backend=backend))


def _choice(backend: str, texts: list[str]) -> CompiledGrammar:
    return compiled(backend, StructuredOutputsParams(choice=texts, backend=backend))
