"""Which keywords of JSON schemas llguidance's backend keeps, and which it refuses: by name and place."""

import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.json_formats import FORMATS
from pelton.grammar.json_keywords import reduced_schema
from pelton.grammar.json_numbers import number_keywords
from pelton.grammar.llguidance_backend import LLGuidanceBackend
from pelton.structured_outputs_params import StructuredOutputsParams
from tests.grammar.installed_backends import INSTALLED, compiled
from tests.grammar.random_generation import accepts
from tests.grammar.small_vocabularies import BYTES, PIECES

BACKEND = LLGuidanceBackend(BYTES)
_TAGGED = [
    {"type": "object", "properties": {"kind": {"const": name}, "size": {"type": "integer"}}, "required": ["kind"]}
    for name in ("cat", "dog")
]
_CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}


def _accepts(schema, text, **options):
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema, **options))
    return accepts(grammar, BYTES, BYTES.encode(text))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (True, ["1", '[null, {"a": []}]'], ["", "nul"]),
        ({"type": ["integer", "null"]}, ["1", "null", "-0"], ["1.5", '"1"']),
        ({"type": "number"}, ["1.5e3", "-0.0"], ["01", ".5", "+1"]),
        ({"type": "integer", "minimum": 2.5, "exclusiveMaximum": 5}, ["3", "4"], ["2", "5"]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1.5}, ["0.5", "1.5", "1"], ["0", "-0", "0.0", "1.51"]),
        ({"type": "number", "exclusiveMaximum": 0}, ["-1"], ["0", "-0", "-0.0"]),
        ({"type": "integer", "multipleOf": 3}, ["0", "-9", "12"], ["4"]),
        ({"type": "number", "multipleOf": 0.5}, ["1.5", "2"], ["1.25"]),
        ({"minimum": 3}, ["3", '"a"', "null"], ["2"]),
        (
            {"enum": [1, 1.5, "a", None, [1], {"a": True}]},
            ["1", "1.5", '"a"', "null", "[1]", '{"a":true}'],
            ["2", "[]"],
        ),
        ({"enum": [True]}, ["true"], ["1", "false"]),
        ({"type": "string", "enum": ["a", 1, None]}, ['"a"'], ["1", "null"]),
        ({"const": 1, "enum": [1, 2]}, ["1"], ["2"]),
        ({"enum": ["a", "ab", "abc"], "minLength": 2}, ['"ab"', '"abc"'], ['"a"']),
        ({"type": "string", "minLength": 1, "maxLength": 2}, ['"é"', '"😀\\n"'], ['""', '"abc"']),
        ({"type": "string", "pattern": "b"}, ['"abc"', '"b"'], ['"a"', '""']),
        ({"type": "string", "pattern": "^a|b$"}, ['"ax"', '"xb"'], ['"xa"', '"bx"']),
        ({"type": "string", "pattern": "^\\d+$"}, ['"12"'], ['"٣"', '"1a"', '"1\\n"']),
        ({"type": "string", "pattern": "^a", "maxLength": 2, "minLength": 2}, ['"ab"'], ['"a"', '"ba"', '"abc"']),
        (
            {"items": {"type": "null"}, "type": "array", "minItems": 1, "maxItems": 2},
            ["[null]"],
            ["[]", "[1]", "[null,null,null]"],
        ),
        ({"type": "array", "prefixItems": [{"const": 1}], "items": False}, ["[]", "[1]"], ["[2]", "[1,2]"]),
        ({"type": "array", "prefixItems": [True], "unevaluatedItems": False}, ["[2]"], ["[1,2]"]),
        ({"type": "array", "items": [{"const": 1}], "additionalItems": {"const": 2}}, ["[1,2,2]"], ["[1,1]"]),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, ["[1]"], ["[1,1]"]),
        ({"type": "array", "uniqueItems": False, "contains": False, "minContains": 0}, ["[1,1]"], ["1"]),
        (_CLOSED, ["{}", '{"a": 1}'], ['{"a":"x"}', '{"b":1}', '{"a":1,"a":2}']),
        (
            {"type": "object", "properties": {"a": {"type": "integer"}}},
            ['{"a":1,"b":"x"}'],
            ['{"\\u0061":"x"}', '{"a":1,"a":2}'],
        ),
        (
            {"type": "object", "properties": {'a\n"/é': {"const": 1}}, "required": ['a\n"/é']},
            ['{"a\\n\\"/é":1}'],
            ["{}", '{"a\\n\\"/é":2}'],
        ),
        ({"type": "object", "properties": {"": {"const": 1}, "b": False}}, ['{"":1}'], ['{"":2}', '{"b":1}']),
        (
            {"type": "object", "required": ["z"], "additionalProperties": {"type": "null"}},
            ['{"z":null}'],
            ["{}", '{"z":1}'],
        ),
        (
            {"type": "object", "patternProperties": {"^\\d": {"const": 1}}, "additionalProperties": False},
            ['{"1x":1}'],
            ['{"1":2}', '{"x":1}'],
        ),
        (
            {"type": "object", "properties": {"ab": {"minimum": 3}}, "patternProperties": {"^a": {"type": "integer"}}},
            ['{"ab":3}'],
            ['{"ab":2}', '{"ab":"x"}', '{"ac":1.5}'],
        ),
        (
            {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"const": 1}},
            ['{"b":1}'],
            ['{"c":1}', '{"a":2}'],
        ),
        ({"type": "object", "propertyNames": {"pattern": "^x"}}, ['{"x1":2}'], ['{"y":1}']),
        ({"type": "object", "minProperties": 1}, ['{"a":1}'], ["{}"]),
        ({"type": "object", "minProperties": 1, "properties": {"a": True, "b": True}}, ['{"b":1}'], ["{}"]),
        ({"type": "object", "maxProperties": 1}, ["{}", '{"a":1}'], ['{"a":1,"b":1}']),
        ({"dependentRequired": {"a": ["b"]}, "type": "object"}, ["{}", '{"b":1}', '{"a":1,"b":1}'], ['{"a":1}']),
        (
            {"type": "object", "dependentSchemas": {"a": {"properties": {"b": {"const": 1}}}}},
            ['{"b":2}', '{"a":0,"b":1}'],
            ['{"a":0,"b":2}'],
        ),
        ({"not": {"type": ["string", "object"]}}, ["1", "[]"], ['"a"', "{}"]),
        ({"type": "object", "not": {"required": ["a"]}}, ["{}", '{"b":1}'], ['{"a":1}']),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 3}]}, ["3"], ["2", '"a"']),
        ({"allOf": [_CLOSED, {"properties": {"b": True}}]}, ['{"a":1}'], ['{"a":1,"b":1}']),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "maxLength": 1}, ["null", '"a"'], ['"ab"', "1"]),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ["1", '"a"'], ["null"]),
        (
            {"oneOf": _TAGGED},
            ['{"kind":"cat","size":1}', '{"kind":"dog"}'],
            ['{"kind":"cow"}', '{"kind":"cat","size":"x"}'],
        ),
        (
            {"oneOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/d"}], "$defs": dict(zip("cd", _TAGGED, strict=True))},
            ['{"kind":"dog"}'],
            ["{}"],
        ),
        ({"$ref": "#/$defs/s", "maxLength": 1, "$defs": {"s": {"type": "string"}}}, ['"a"'], ['"ab"', "1"]),
        ({"$ref": "#there", "$defs": {"s": {"$anchor": "there", "type": "null"}}}, ["null"], ["1"]),
        ({"$id": "http://x/y", "$ref": "z", "$defs": {"s": {"$id": "z", "type": "null"}}}, ["null"], ["1"]),
        ({"$ref": "#/properties/a~1b", "properties": {"a/b": {"type": "null"}}}, ["null"], ["1"]),
        ({"type": "array", "items": {"$ref": "#"}}, ["[[], [[]]]"], ["[1]"]),
        ({"if": True, "then": {"const": 1}, "else": {"const": 2}}, ["1"], ["2"]),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "$ref": "#/definitions/i",
                "type": "null",
                "definitions": {"i": {"type": "integer"}},
            },
            ["1"],
            ["null"],
        ),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [False], "type": "array"},
            ["[1]"],
            ["1"],
        ),
        (
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "type": "integer",
                "minimum": 3,
                "exclusiveMinimum": True,
            },
            ["4"],
            ["3"],
        ),
        (
            {"type": "string", "x-guidance": {"lenient": True}, "title": "t", "discriminator": 1, "nullable": True},
            ['"a"'],
            ["null"],
        ),
        ({"properties": {"a": {"x-guidance": 1, "type": "null"}}, "type": "object"}, ['{"a":null}'], ['{"a":1}']),
    ],
    ids=lambda value: json.dumps(value, ensure_ascii=False)[:60] if isinstance(value, dict) else "",
)
def test_keeps(schema, good, bad):
    BACKEND.check(StructuredOutputsParams(json=schema))
    for text in good:
        assert _accepts(schema, text), text
    for text in bad:
        assert not _accepts(schema, text), text


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"properties": {"a/b~": {"type": "array", "uniqueItems": True}}},
            "uniqueItems at /properties/a~1b~0/uniqueItems cannot be kept",
        ),
        ({"contains": {"type": "null"}}, "contains at /contains"),
        ({"not": {"const": 1}}, "not at /not"),
        ({"if": {"type": "null"}, "then": False}, "if at /if"),
        (
            {"oneOf": [{"type": "integer"}, {"type": "number"}]},
            "oneOf at /oneOf cannot be kept .* entries 0 and 1 may both hold",
        ),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, "oneOf at /oneOf"),
        ({"items": {"$dynamicRef": "#x"}}, r"\$dynamicRef at /items/\$dynamicRef"),
        ({"$ref": "http://x/y"}, r"the \$ref 'http://x/y' at the top leads out of the schema"),
        ({"$ref": "#/$defs/none"}, "leads to no schema"),
        ({"$schema": "http://x/y"}, r"\$schema .* known are the drafts"),
        ({"type": "strin"}, "type at /type must be of"),
        ({"type": []}, "type at /type must be of"),
        ({"properties": [1]}, "properties at /properties must be an object"),
        ({"properties": {"a": 5}}, "/properties/a must be a schema, got 5"),
        ({"required": "a"}, "required at /required must be a list of strings"),
        ({"anyOf": []}, "anyOf at /anyOf must be a non-empty list"),
        ({"minLength": -1}, "minLength at /minLength must be a count"),
        ({"maxItems": 1.5}, "maxItems at /maxItems must be a count"),
        ({"minimum": "1"}, "minimum at /minimum must be a number"),
        ({"minimum": 2**60, "type": "integer"}, "minimum at /minimum cannot be kept beyond"),
        ({"multipleOf": 0}, "multipleOf at /multipleOf must be a positive number"),
        ({"multipleOf": 0.01}, "multipleOf at /multipleOf cannot be kept: it must be exact in binary"),
        ({"multipleOf": 123457}, "multipleOf"),
        ({"enum": [1, 2**60]}, "enum at /enum holds 1152921504606846976, which cannot be kept exactly"),
        ({"const": ["\x01"]}, r"const at /const holds the control character U\+0001"),
        ({"enum": []}, "no finite output"),
        (False, "no finite output"),
        ({"type": "string", "enum": [1]}, "no finite output"),
        ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, "no finite output"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "no finite output"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "no finite output"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no finite output"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "no finite output"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "json: llguidance cannot keep it: Unsatisfiable"),
        ({"pattern": "(?=a)b"}, "pattern at /pattern: look-around"),
        ({"pattern": "(a)\\1"}, "back-reference"),
        ({"pattern": "\\bfoo"}, r"assertion \\b"),
        ({"pattern": "a^b"}, "an anchor"),
        ({"pattern": "^[\\x00-\\x07]$"}, "matches only control characters"),
        ({"pattern": "("}, r"no closing \) for the \( at character 0"),
        ({"patternProperties": {"[": True}}, r"pattern at /patternProperties/\["),
        ({"patternProperties": {"^a": {"type": "null"}, "b$": {"type": "null"}}, "type": "object"}, "not disjoint"),
        ({"format": "regex"}, "format at /format is 'regex', which cannot be kept"),
        ({"format": "phone", "type": "string"}, "format at /format is 'phone'"),
        ({"minProperties": 2}, "minProperties at /minProperties"),
        ({"maxProperties": 1, "properties": {"a": True}}, "maxProperties at /maxProperties"),
        ({"propertyNames": {"maxLength": 2}}, "propertyNames at /propertyNames"),
        ({"unevaluatedProperties": False, "allOf": [{"properties": {"a": True}}]}, "unevaluatedProperties at"),
        ({"unevaluatedItems": False, "anyOf": [True]}, "unevaluatedItems at"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [True]}, "/items must be a schema"),
    ],
    ids=lambda value: json.dumps(value, ensure_ascii=False)[:60] if isinstance(value, dict) else "",
)
def test_refuses(schema, message):
    params = StructuredOutputsParams(json=schema)
    for refuses in (BACKEND.check, BACKEND.compile):
        with pytest.raises(UnsupportedGrammarError, match=message) as caught:
            refuses(params)
        assert str(caught.value).isprintable()
        assert str(caught.value).startswith("json: ")


def test_depth_is_refused_not_a_stack_overflow():
    deep = {}
    for _ in range(10_000):
        deep = {"items": deep}
    with pytest.raises(ValueError, match="recursion"):
        StructuredOutputsParams(json=deep)
    with pytest.raises(UnsupportedGrammarError, match="nested more than"):
        reduced_schema(deep, "json")
    with pytest.raises(UnsupportedGrammarError, match="has more than"):
        reduced_schema({"enum": [[] for _ in range(200_000)]}, "json")


def test_long_chains_of_references_are_refused_not_a_stack_overflow():
    definitions = {f"d{n}": {"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(2_000)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**definitions, "d2000": {"type": "null"}}}
    with pytest.raises(UnsupportedGrammarError, match="levels deep"):
        BACKEND.check(StructuredOutputsParams(json=schema))
    circle = {f"d{n}": {"properties": {"a": {"$ref": f"#/$defs/d{(n + 1) % 400}"}}} for n in range(400)}
    with pytest.raises(UnsupportedGrammarError, match="levels deep"):
        BACKEND.check(StructuredOutputsParams(json={"$ref": "#/$defs/d0", "$defs": circle}))


def test_one_of_nested_deeply_is_bounded():
    schema = {"type": "string"}
    for _ in range(12):
        schema = {"oneOf": [schema, {"type": "array", "items": schema}]}
    with pytest.raises(UnsupportedGrammarError, match="oneOf at"):
        BACKEND.check(StructuredOutputsParams(json=schema))


@pytest.mark.parametrize(
    ("options", "good", "bad"),
    [
        (
            {},
            ['{"a":[1,2]}', '{"a": [1, 2]}', '{\n    "a": [\n        1,\n        2\n    ]\n}'],
            ['{  "a":[1,2]}', ' {"a":[1,2]}', "{\n\n}"],
        ),
        ({"disable_any_whitespace": True}, ['{"a":[1,2]}'], ['{"a": [1,2]}', "{\n}"]),
        ({"whitespace_pattern": "[ \\n]{0,3}"}, ['{   "a":[1,2]}'], ['{    "a":[1,2]}', '{\t"a":[1,2]}']),
    ],
)
def test_whitespace(options, good, bad):
    for text in good:
        assert _accepts({"type": "object"}, text, **options), text
    for text in bad:
        assert not _accepts({"type": "object"}, text, **options), text


@pytest.mark.parametrize("pattern", ["x*", "[^a]", "(?=a)", ".", "\\s"])
def test_whitespace_patterns_that_match_more_are_refused(pattern):
    params = StructuredOutputsParams(json={}, whitespace_pattern=pattern)
    with pytest.raises(UnsupportedGrammarError, match=r"^whitespace_pattern"):
        BACKEND.check(params)


def test_additional_properties_can_be_disabled():
    inner = {"type": "object", "properties": {"b": {"type": "object"}}}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/i"}}, "$defs": {"i": inner}}
    assert _accepts(schema, '{"a":{"c":1},"d":2}')
    closed = {"disable_additional_properties": True}
    assert _accepts(schema, '{"a":{"b":{"free":1}}}', **closed)
    assert not _accepts(schema, '{"a":{"c":1}}', **closed)
    assert not _accepts(schema, '{"d":1}', **closed)
    assert _accepts({**schema, "additionalProperties": True}, '{"d":1}', **closed)
    assert _accepts({"$ref": "#/$defs/i", "description": "", "$defs": {"i": inner}}, '{"b":{}}', **closed)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": True}, "allOf": [{"properties": {"b": True}}]},
        {"allOf": [{"properties": {"a": True}}, {"$ref": "#/$defs/b"}], "$defs": {"b": {"properties": {"b": True}}}},
        {"properties": {"a": True}, "anyOf": [{"required": ["a"]}, {"$ref": "#/$defs/b"}], "$defs": {"b": True}},
    ],
)
def test_what_others_may_add_to_is_not_closed(schema):
    assert _accepts({"type": "object", **schema}, '{"a":1,"b":2,"c":3}', disable_additional_properties=True)


def test_what_is_required_stays_allowed():
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a", "b"]}
    for backend in INSTALLED:
        grammar = compiled(backend, StructuredOutputsParams(json=schema, disable_additional_properties=True))
        assert accepts(grammar, PIECES, PIECES.encode('{"a":null,"b":1}'))
        assert not accepts(grammar, PIECES, PIECES.encode('{"a":null,"b":1,"c":1}'))


_EXAMPLES = {
    "date": (["2024-02-29", "2000-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29", "0000-01-01", "2024-13-01"]),
    "time": (["12:00:00Z", "23:59:59.123+05:30"], ["24:00:00Z", "12:00:00", "12:00:60Z"]),
    "date-time": (["2024-02-29T12:00:00Z"], ["2023-02-29T12:00:00Z", "2024-01-01 12:00:00Z", "2024-01-01"]),
    "duration": (["P1Y2M3DT4H", "PT5M", "P2W"], ["P", "PT", "P1Y2W", "1D"]),
    "email": (["a.b+c@example.com"], ["a@b", ".a@example.com", "a..b@example.com", "@example.com"]),
    "hostname": (["example.com", "a-b.c"], ["-a.com", "a-.com", "ab--c", "a..b", "a" * 64]),
    "ipv4": (["0.0.0.0", "255.10.1.99"], ["256.0.0.1", "01.1.1.1", "1.1.1"]),
    "ipv6": (
        ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2::7:8"],
        ["1:2:3:4:5:6:7:8:9", "1::2::3", "12345::", "1:2:3:4:5:6:7::8:9"],
    ),
    "uuid": (
        ["123e4567-e89b-12d3-a456-426614174000"],
        ["123e4567e89b12d3a456426614174000", "g23e4567-e89b-12d3-a456-426614174000"],
    ),
    "uri": (
        ["http://example.com/a?b=c#d", "mailto:a@b.c", "http://[::1]:80/"],
        ["//example.com", "a b:c", "http://a/%zz", ""],
    ),
    "uri-reference": (["/a/b", "", "#x", "a:b", "../a"], ["a b", "%"]),
    "json-pointer": (["", "/a~1b/0"], ["a", "/~2"]),
    "relative-json-pointer": (["0", "1/a", "2#"], ["01", "/a", "-1"]),
}


@pytest.mark.parametrize("name", _EXAMPLES)
def test_formats(name):
    good, bad = _EXAMPLES[name]
    for text in good:
        assert _accepts({"type": "string", "format": name}, f'"{text}"'), text
    for text in bad:
        assert not _accepts({"type": "string", "format": name}, f'"{text}"'), text


@pytest.mark.parametrize("name", FORMATS)
def test_all_formats_can_be_combined_with_lengths(name):
    BACKEND.check(StructuredOutputsParams(json={"type": "string", "format": name}))


_NUMBERS = st.one_of(
    st.integers(-(10**17), 10**17), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0, 0.1, -1e-7])
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]), _NUMBERS),
    st.booleans(),
)
def test_reduced_bounds_are_within_the_bounds(bounds, integer):
    try:
        found = number_keywords(bounds, integer=integer)
    except ValueError:
        return
    if found is None:
        return
    low, high = found.get("minimum"), found.get("maximum")
    for keyword, value in bounds.items():
        limit = low if "inimum" in keyword else high
        assert limit is not None
        distance = Fraction(limit) - Fraction(value) if "inimum" in keyword else Fraction(value) - Fraction(limit)
        assert distance > 0 or (distance == 0 and "exclusive" not in keyword)
        assert "e" not in repr(limit) or integer or abs(limit) < 1e-4
    assert low is None or high is None or low <= high


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "required": ["id"], "anyOf": [{"properties": {"a": {"type": "null"}}}, {"required": ["b"]}]},
        {"type": "object", "patternProperties": {"^x": {}}, "required": ["id"]},
    ],
)
def test_what_is_required_elsewhere_is_not_closed(schema):
    assert _accepts(schema, '{"id":1,"c":2}', disable_additional_properties=True)


def test_no_properties_are_properties():
    for backend in INSTALLED:
        params = StructuredOutputsParams(json={"type": "object", "properties": {}}, disable_additional_properties=True)
        grammar = compiled(backend, params)
        assert accepts(grammar, PIECES, PIECES.encode("{}"))
        assert not accepts(grammar, PIECES, PIECES.encode('{"a":1}'))


def test_multiples_stay_where_doubles_are_exact():
    assert _accepts({"multipleOf": 5.0}, "-9007199254740990")
    assert not _accepts({"multipleOf": 5.0}, "9253661412542765")
    assert not _accepts({"type": "integer", "multipleOf": 3, "minimum": 0}, "9007199254740993")


def test_first_items_said_twice():
    params = StructuredOutputsParams(json={"type": "array", "items": [{"type": "boolean"}], "prefixItems": [{}]})
    with pytest.raises(
        UnsupportedGrammarError, match=r"^json: the keyword prefixItems at /prefixItems stands beside a list"
    ):
        BACKEND.check(params)
