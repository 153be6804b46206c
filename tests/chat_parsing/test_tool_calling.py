"""How a request's tools constrain its output, and that what the constraint allows is read as calls."""

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.chat_parsing import Tool, ToolChoice, call_constraint, make_tool_parser
from pelton.chat_parsing.tool_calling import MAX_CALLS
from pelton.chat_parsing.tool_parsers.hermes import HermesParser
from pelton.structured_outputs_params import StructuredOutputsParams
from tests.chat_parsing.call_formats import CALLS, json_list
from tests.chat_parsing.streams import calls_of, message_of

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TREE = {
    "$id": "https://example.com/tree",
    "type": "object",
    "properties": {
        "root": {"$ref": "#/$defs/Node"},
        "same": {"$ref": "https://example.com/tree#/$defs/Node"},
        "inner": {"$ref": "#"},
        "named": {"$ref": "#leaf"},
        "$ref": {"type": "integer"},
    },
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"value": {"$ref": "#/$defs/Value"}, "next": {"$ref": "#/properties/root"}},
            "required": ["value"],
        },
        "Value": {"$anchor": "leaf", "enum": [1, {"$ref": "#/$defs/Value"}]},
    },
    "additionalProperties": False,
}
LIST = {
    "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/Value"}}, "first": {"$ref": "#leaf"}},
    "$defs": {"Value": {"$anchor": "leaf", "type": "string"}},
}
TOOLS = [Tool("weather", parameters=CITY), Tool("tree", parameters=TREE), Tool("list", parameters=LIST), Tool("now")]
REQUIRED = ToolChoice("required")

GOOD = [
    [("weather", {"city": "Zürich"})],
    [("weather", {"city": "a", "more": 1}), ("now", {})],
    [("tree", {"root": {"value": 1, "next": {"value": {"$ref": "#/$defs/Value"}}}, "$ref": 5})],
    [("tree", {"inner": {"inner": {"named": 1}}, "same": {"value": 1}})],
    [("list", {"items": ["a"], "first": "b"}), ("tree", {})],
]
BAD = [
    [],
    [("weather", {})],
    [("weather", {"city": 5})],
    [("weather", [])],
    [("tree", {"root": {"value": "1"}})],
    [("tree", {"root": {"value": 1, "next": {"value": 2}}})],
    [("tree", {"inner": {"inner": {"named": "x"}}})],
    [("tree", {"same": {}})],
    [("tree", {"more": 1})],
    [("list", {"items": [1]})],
    [("list", {"first": 1})],
    [("list", [])],
    [("now", {"a": 1})],
    [("other", {})],
    [("now", {})] * (MAX_CALLS + 1),
]


def schema_of(tools, choice, **options):
    constraint = call_constraint(tools, choice, **options)
    assert constraint is not None
    assert constraint == StructuredOutputsParams(json=constraint.json)
    jsonschema.Draft202012Validator.check_schema(constraint.json)
    return constraint.json


def is_valid(schema, calls):
    instance = [{"name": name, "parameters": arguments} for name, arguments in calls]
    return jsonschema.Draft202012Validator(schema).is_valid(instance)


@pytest.mark.parametrize("calls", GOOD)
def test_required(calls):
    schema = schema_of(TOOLS, REQUIRED)
    assert is_valid(schema, calls)
    only = [Tool(tool.name, parameters=tool.parameters) for tool in TOOLS if tool.name in dict(calls)]
    assert is_valid(schema_of(only, REQUIRED), calls)


@pytest.mark.parametrize("calls", BAD)
def test_what_is_not_allowed(calls):
    assert not is_valid(schema_of(TOOLS, REQUIRED), calls)


def test_one_call_unless_parallel():
    schema = schema_of(TOOLS, REQUIRED, parallel=False)
    assert is_valid(schema, [("now", {})])
    assert not is_valid(schema, [("now", {}), ("now", {})])
    assert not is_valid(schema, [])


def test_named():
    assert schema_of(TOOLS, ToolChoice("named", "weather")) == CITY
    assert schema_of(TOOLS, ToolChoice("named", "tree")) == TREE
    assert schema_of(TOOLS, ToolChoice("named", "list")) == {"type": "object", **LIST}
    nothing = schema_of(TOOLS, ToolChoice("named", "now"))
    assert nothing == {"type": "object", "properties": {}, "additionalProperties": False}
    either = Tool("either", parameters={"type": ["object", "null"]})
    assert schema_of([either], ToolChoice("named", "either")) == {"type": "object"}


def test_the_request_stays_as_it_is():
    before = json.dumps(TREE)
    schema_of(TOOLS, REQUIRED)
    assert json.dumps(TREE) == before


def test_free_output():
    assert call_constraint(TOOLS, ToolChoice("auto")) is None
    assert call_constraint(TOOLS, ToolChoice("none")) is None


def test_drafts():
    seventh, latest = "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"
    old = Tool("old", parameters={"$schema": seventh, **CITY})
    schema = call_constraint([old, Tool("now")], REQUIRED)
    assert schema.json["$schema"] == seventh
    assert "$schema" not in schema.json["$defs"]["tool_0"]
    with pytest.raises(
        ValueError, match=r"^the schemas of tools.* must have the same \$schema, got 'http.*07.*' and 'http.*'$"
    ):
        call_constraint([old, Tool("new", parameters={"$schema": latest, **CITY})], REQUIRED)


def test_schemas_with_ids_inside_keep_their_references():
    inner = {"$id": "https://example.com/inner", "$ref": "#/$defs/A", "$defs": {"A": {"type": "integer"}}}
    tools = [Tool("f", parameters={"type": "object", "properties": {"a": inner}})]
    schema = schema_of(tools, REQUIRED)
    assert is_valid(schema, [("f", {"a": 1})])
    assert not is_valid(schema, [("f", {"a": "x"})])


def test_ids_that_cannot_be_told_apart():
    def tool(name, inner, **top):
        parameters = {"type": "object", "properties": {"a": {"$ref": "http://x/in"}}, "$defs": {"d": inner}, **top}
        return Tool(name, parameters=parameters)

    first = tool("f", {"$id": "http://x/in", "type": "integer"})
    second = tool("g", {"$id": "http://x/in", "type": "string"})
    with pytest.raises(ValueError, match="have the id 'http://x/in'; leave it out"):
        call_constraint([first, second], REQUIRED)
    assert is_valid(schema_of([first], REQUIRED), [("f", {"a": 1})])
    anchor = Tool("h", parameters={"properties": {"next": {"$id": "#node", "properties": {"a": {"$ref": "#"}}}}})
    with pytest.raises(ValueError, match="have the id '#node'"):
        call_constraint([anchor], REQUIRED)


def test_ids_of_draft_4():
    draft = "http://json-schema.org/draft-04/schema#"
    tree = {"$schema": draft, "id": "http://x/tree", "properties": {"a": {"$ref": "http://x/tree"}}}
    schema = call_constraint([Tool("f", parameters={**tree, "type": "object"})], REQUIRED).json
    validator = jsonschema.Draft4Validator(schema)
    assert validator.is_valid([{"name": "f", "parameters": {"a": {"a": {}}}}])
    assert not validator.is_valid([{"name": "f", "parameters": {"a": {"a": 5}}}])


def test_parsers():
    assert make_tool_parser(ToolChoice("none"), "hermes") is None
    assert isinstance(make_tool_parser(ToolChoice("auto"), "qwen3"), HermesParser)
    with pytest.raises(ValueError, match=r"^tool_choice is 'auto', but how the model writes calls is not known, "):
        make_tool_parser(ToolChoice("auto"), None)
    for mode in ("auto", "required"):
        with pytest.raises(ValueError, match=r"^tool_call_parser must be one of "):
            make_tool_parser(ToolChoice(mode), "gpt")


@pytest.mark.parametrize("calls", GOOD)
def test_what_is_required_is_read(calls):
    message = message_of(make_tool_parser(REQUIRED, None), json_list(calls))
    assert message.content == ""
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls


@settings(max_examples=50)
@given(st.lists(CALLS, min_size=1, max_size=3), st.data())
def test_cut_off_output_that_was_required(calls, data):
    """What there is of a call's arguments is its arguments, once they have begun."""
    text = json_list(calls)
    whole = calls_of(message_of(make_tool_parser(REQUIRED, "hermes"), text))
    end = data.draw(st.integers(0, len(text) - 1))
    message = message_of(make_tool_parser(REQUIRED, "hermes"), text[:end])
    found = calls_of(message)
    assert [name for name, _ in found] == [name for name, _ in whole][: len(found)]
    assert all(arguments == all_of_it for (_, arguments), (_, all_of_it) in zip(found[:-1], whole, strict=False))
    if found:
        assert whole[len(found) - 1][1].startswith(found[-1][1])


def test_only_one_call_is_read_unless_parallel():
    text = json_list([("now", {}), ("now", {})])
    assert len(message_of(make_tool_parser(REQUIRED, None, parallel=False), text).tool_calls) == 1


@pytest.mark.parametrize("choice", [REQUIRED, ToolChoice("named", "now")])
def test_ids_are_the_models(choice):
    text = "{}" if choice.name else json_list([("now", {})])
    assert len(message_of(make_tool_parser(choice, "mistral"), text).tool_calls[0].id) == 9
    assert message_of(make_tool_parser(choice, None), text).tool_calls[0].id.startswith("call_")
    message = message_of(make_tool_parser(choice, "mistral", new_id=lambda: "mine"), text)
    assert message.tool_calls[0].id == "mine"
