"""What `StructuredOutputsParams` takes and refuses."""

import msgspec
import pytest

from pelton.structured_outputs_params import (
    KINDS,
    MAX_CHOICES_LENGTH,
    MAX_SOURCE_LENGTH,
    GuidedDecodingParams,
    StructuredOutputsParams,
)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"json": {"type": "object"}}, "json"),
        ({"json": '{"type": "object"}'}, "json"),
        ({"json": True}, "json"),
        ({"json": False}, "json"),
        ({"json": {}}, "json"),
        ({"regex": "a+"}, "regex"),
        ({"choice": ["a", "b"]}, "choice"),
        ({"grammar": 'start: "a"'}, "grammar"),
        ({"json_object": True}, "json_object"),
        ({"json_object": False, "regex": "a"}, "regex"),
        ({"structural_tag": {"type": "structural_tag"}}, "structural_tag"),
    ],
)
def test_kinds(fields, kind):
    assert StructuredOutputsParams(**fields).kind == kind


def test_texts_of_schemas_become_dicts():
    assert StructuredOutputsParams(json='{"type": "null"}').json == {"type": "null"}
    assert StructuredOutputsParams(structural_tag='{"type": "x"}').structural_tag == {"type": "x"}


def test_the_older_name_is_the_same_class():
    assert GuidedDecodingParams is StructuredOutputsParams


def test_survives_a_message():
    params = StructuredOutputsParams(json={"enum": ["é", 1.5, None]}, whitespace_pattern=" ?")
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=StructuredOutputsParams)
    assert decoded == params
    assert decoded.kind == "json"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, f"must have one of {', '.join(KINDS)}, got none"),
        ({"json_object": False}, "got none"),
        ({"regex": "a", "choice": ["a"]}, "got regex and choice"),
        ({"json": False, "json_object": True}, "got json and json_object"),
        ({"regex": ""}, "regex must be a non-empty string"),
        ({"regex": 5}, "regex must be a non-empty string, got 5"),
        ({"regex": "\ud800"}, "regex must be valid Unicode"),
        ({"regex": "a" * (MAX_SOURCE_LENGTH + 1)}, "regex must have at most"),
        ({"json": "{"}, "json must be a dict or the text of a JSON object"),
        ({"json": "[" * 100_000}, "json must be a dict or the text of a JSON object"),
        ({"json": [1]}, "json must be a dict or the text"),
        ({"json": {"const": float("nan")}}, "json must hold plain JSON data"),
        ({"json": {"const": {1, 2}}}, "json must hold plain JSON data"),
        ({"json": {"const": "\ud800"}}, "json must hold plain JSON data"),
        ({"structural_tag": True}, "structural_tag must be a dict"),
        ({"choice": []}, "choice must be a non-empty list"),
        ({"choice": "ab"}, "choice must be a non-empty list of strings, got 'ab'"),
        ({"choice": ["a", ""]}, "choice must hold non-empty strings, got ''"),
        ({"choice": ["a", 1]}, "choice must hold non-empty strings, got 1"),
        ({"choice": ["a"] * (MAX_CHOICES_LENGTH + 1)}, f"at most {MAX_CHOICES_LENGTH} strings"),
        ({"json_object": 1}, "json_object must be True or False"),
        ({"regex": "a", "disable_any_whitespace": 1}, "disable_any_whitespace must be True or False"),
        ({"json": {}, "disable_any_whitespace": True, "whitespace_pattern": " "}, "leave out one of them"),
        ({"regex": "a", "backend": "outlines"}, "backend must be one of auto, llguidance, xgrammar, got 'outlines'"),
    ],
)
def test_refuses(fields, message):
    with pytest.raises(ValueError, match="(?s)" + message.replace("(", r"\(")):
        StructuredOutputsParams(**fields)
