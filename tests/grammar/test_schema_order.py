"""The helper that writes instances as a model under a schema would."""

import json
from typing import Any

import pytest

from tests.grammar.schema_order import in_schema_order
from tests.grammar.validators import resolver_of


def ordered(instance: Any, schema: Any) -> str:
    return json.dumps(in_schema_order(instance, schema, resolver_of(schema)))


@pytest.mark.parametrize(
    ("schema", "instance", "expected"),
    [
        ({"properties": {"b": {}, "a": {}}}, {"x": 0, "a": 1, "b": 2}, {"b": 2, "a": 1, "x": 0}),
        ({"properties": {"b": {}}, "required": ["c", "b"]}, {"a": 0, "c": 1, "b": 2}, {"b": 2, "c": 1, "a": 0}),
        ({"dependentRequired": {"c": ["b"]}}, {"a": 0, "b": 1, "c": 2}, {"c": 2, "b": 1, "a": 0}),
        ({"dependencies": {"b": {"properties": {"c": {}}}}}, {"a": 0, "b": 1, "c": 2}, {"c": 2, "a": 0, "b": 1}),
        ({"dependentSchemas": {"d": {"properties": {"c": {}}}}}, {"a": 0, "c": 2}, {"a": 0, "c": 2}),
        ({"dependencies": {"c": ["b"], "d": True}}, {"a": 0, "b": 1, "c": 2}, {"c": 2, "b": 1, "a": 0}),
        ({"allOf": [{"properties": {"b": {}}}, {"properties": {"a": {}}}]}, {"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (
            {"properties": {"o": {"properties": {"b": {}, "a": {}}}}},
            {"o": {"a": 1, "b": 2}},
            {"o": {"b": 2, "a": 1}},
        ),
        (
            {"additionalProperties": {"properties": {"b": {}, "a": {}}}},
            {"o": {"a": 1, "b": 2}},
            {"o": {"b": 2, "a": 1}},
        ),
        ({"patternProperties": {"o": {"properties": {"b": {}}}}}, {"o": {"a": 1, "b": 2}}, {"o": {"b": 2, "a": 1}}),
        ({"$ref": "#/$defs/t", "$defs": {"t": {"properties": {"b": {}}}}}, {"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (
            {"properties": {"b": {}, "next": {"$ref": "#"}, "a": {}}},
            {"next": {"a": 1, "b": 2}, "b": 3},
            {"b": 3, "next": {"b": 2, "a": 1}},
        ),
        ({"items": {"properties": {"b": {}, "a": {}}}}, [{"a": 1, "b": 2}], [{"b": 2, "a": 1}]),
        (
            {"prefixItems": [{}, {"properties": {"b": {}}}]},
            [{"a": 1, "b": 2}] * 2,
            [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        ),
        (
            {"items": [{}], "additionalItems": {"properties": {"b": {}}}},
            [{"a": 1, "b": 2}] * 2,
            [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        ),
        ({"const": {"b": [1], "a": 2}}, {"a": 2, "b": [1]}, {"b": [1], "a": 2}),
        ({"enum": [{"b": True, "a": 2}]}, {"a": 2, "b": True}, {"b": True, "a": 2}),
        ({"enum": [{"b": 1, "a": 2}]}, {"a": 2, "b": True}, {"a": 2, "b": True}),
        (True, {"b": 1, "a": 2}, {"b": 1, "a": 2}),
        ({"$ref": "#"}, 1.0, 1.0),
    ],
)
def test_order(schema: Any, instance: Any, expected: Any) -> None:
    assert ordered(instance, schema) == json.dumps(expected)
