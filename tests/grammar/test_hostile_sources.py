"""Sources that are made to take long: each is refused or read in a moment. A step of exponential or quadratic time
would not come to its end before the tests' time limit."""

import pytest

from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.registry import resolve
from pelton.structured_outputs_params import StructuredOutputsParams


def is_read(**source) -> bool:
    try:
        resolve(StructuredOutputsParams(backend="llguidance", **source))
    except UnsupportedGrammarError:
        return False
    return True


def towers(height: int) -> dict:
    """Two schemas that differ only far below, with eight alternatives on every level."""
    definitions = {"l0": {"const": 1}, "r0": {"const": 2}}
    for level in range(1, height + 1):
        for side in "lr":
            below = {"type": "object", "required": ["k"], "properties": {"k": {"$ref": f"#/$defs/{side}{level - 1}"}}}
            definitions[f"{side}{level}"] = {"anyOf": [below] * 8}
    return {"oneOf": [{"$ref": f"#/$defs/l{height}"}, {"$ref": f"#/$defs/r{height}"}], "$defs": definitions}


def test_branches_that_are_compared_with_each_other():
    assert is_read(json=towers(1))
    is_read(json=towers(7))


@pytest.mark.parametrize(
    "grammar",
    [
        "start: /a/" + "\n" * 500_000,
        "start: " + "[" * 500_000,
        'start: "' + '\\"' * 250_000,
        "start: /" + "\\/" * 250_000,
        'start: "a"\n' + "%ignore /b/\n" * 40_000,
        'start: "a"\n' + "%json {} " * 4_000,
        "root ::= " + "(" * 500_000,
        "a" * 1_000_000,
    ],
    ids=lambda grammar: repr(grammar[:14]),
)
def test_long_grammars(grammar):
    is_read(grammar=grammar)


def test_long_chains_of_references():
    definitions = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(5000)} | {"d5000": {}}
    assert not is_read(json={"$ref": "#/$defs/d0", "$defs": definitions})


@pytest.mark.parametrize(
    "source",
    [
        {"grammar": 'start: %json {"type": "string", "minLength": 1e999}'},
        {"grammar": 'start: %json {"const": NaN}'},
        {"json": {"$ref": "#/allOf/" + "9" * 5000, "allOf": [{}]}},
    ],
    ids=["infinite", "nan", "a long index"],
)
def test_odd_values_are_refused(source):
    assert not is_read(**source)


def test_the_callers_schema_is_left_alone():
    """What it says when the request is made counts."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    params = StructuredOutputsParams(json=schema)
    schema["properties"]["a"]["type"] = "string"
    assert params.json == {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert StructuredOutputsParams(json={1: {}}).json == {"1": {}}
