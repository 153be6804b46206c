"""Tools and tool choices of requests are checked, and refused with field, value and remedy."""

import pytest

from pelton.chat_parsing import Tool, ToolChoice, read_tool_choice, read_tools
from pelton.chat_parsing.tools import MAX_DEPTH, MAX_TOOLS
from pelton.structured_outputs_params import MAX_SOURCE_LENGTH
from tests.support.nested import nested

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name="f", **entries):
    return {"type": "function", "function": {"name": name, **entries}}


def test_tools():
    tools = read_tools(
        [
            tool("get_weather", description="Weather.", parameters=SCHEMA, strict=True, more=1),
            tool("a.b-C_9", parameters=None, strict=None, description=None),
            tool("x" * 64, parameters={"properties": {}}),
            tool("y", parameters={"type": ["null", "object"]}),
        ]
    )
    assert tools == [
        Tool("get_weather", "Weather.", SCHEMA, strict=True),
        Tool("a.b-C_9"),
        Tool("x" * 64, parameters={"properties": {}}),
        Tool("y", parameters={"type": ["null", "object"]}),
    ]


def test_no_tools():
    assert read_tools(None) == read_tools([]) == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("f", r"tools must be a list, got 'f'"),
        ({}, r"tools must be a list, got \{\}"),
        ([tool(f"f{i}") for i in range(MAX_TOOLS + 1)], r"tools must hold at most 128 tools, got 129"),
        (["f"], r"tools\[0\] must be \{\"type\": \"function\", \"function\": ...\}, got 'f'"),
        ([tool(), {"type": "custom"}], r"tools\[1\]\.type must be 'function', got 'custom'"),
        ([{"type": "x", "function": {"name": "f"}}], r"tools\[0\]\.type must be 'function', got 'x'"),
        ([{"type": "function", "name": "f"}], r"tools\[0\]\.function must be an object with a name, got None"),
        ([tool("")], r"tools\[0\]\.function\.name must be 1 to 64 letters, .*, got ''"),
        ([tool("x" * 65)], r"tools\[0\]\.function\.name must be 1 to 64 letters, .*, got 'x+"),
        ([tool("a b")], r"tools\[0\]\.function\.name must be 1 to 64 letters, .*, got 'a b'"),
        ([tool("f\n")], r"tools\[0\]\.function\.name must be 1 to 64 letters, .*"),
        ([tool(None)], r"tools\[0\]\.function\.name must be 1 to 64 letters, .*, got None"),
        ([tool(), tool("g"), tool()], r"tools\[2\]\.function\.name must differ from those before it, got 'f'"),
        ([tool(description=5)], r"tools\[0\]\.function\.description must be a string, got 5"),
        ([tool(description="\ud800")], r"tools\[0\]\.function\.description must be valid Unicode .*"),
        ([tool(strict="yes")], r"tools\[0\]\.function\.strict must be True or False, got 'yes'"),
        ([tool(parameters="{}")], r"tools\[0\]\.function\.parameters must be a JSON schema, as an object, got '\{\}'"),
        ([tool(parameters={"type": "array"})], r"tools\[0\]\.function\.parameters\.type must be 'object', .*'array'"),
        ([tool(parameters={"type": ["null"]})], r"tools\[0\]\.function\.parameters\.type must be 'object', .*"),
        (
            [tool(parameters={"default": float("nan")})],
            r"tools\[0\]\.function\.parameters must hold plain JSON data: .*",
        ),
        ([tool(parameters={"default": {1}})], r"tools\[0\]\.function\.parameters must hold plain JSON data: .*"),
        ([tool(parameters={"title": "\udc00"})], r"tools\[0\]\.function\.parameters must be valid Unicode .*"),
        ([tool(parameters={"a": nested(MAX_DEPTH)})], r"tools\[0\]\.function\.parameters must be nested at most 64 .*"),
        ([tool(parameters={"a": nested(50_000)})], r"tools\[0\]\.function\.parameters must be nested at most 64 .*"),
        (
            [tool(f"f{i}", description="x" * (MAX_SOURCE_LENGTH // 4)) for i in range(4)],
            r"tools must have at most 1048576 characters as JSON, got \d+; leave some out",
        ),
    ],
)
def test_refused_tools(value, words):
    with pytest.raises(ValueError, match=f"^{words}$|^{words}"):
        read_tools(value)


TOOLS = [Tool("f"), Tool("g")]


@pytest.mark.parametrize(
    ("value", "tools", "choice"),
    [
        (None, TOOLS, ToolChoice("auto")),
        (None, [], ToolChoice("none")),
        ("none", TOOLS, ToolChoice("none")),
        ("none", [], ToolChoice("none")),
        ("auto", TOOLS, ToolChoice("auto")),
        ("required", TOOLS, ToolChoice("required")),
        ({"type": "function", "function": {"name": "g"}}, TOOLS, ToolChoice("named", "g")),
    ],
)
def test_choices(value, tools, choice):
    assert read_tool_choice(value, tools) == choice


@pytest.mark.parametrize(
    ("value", "tools", "words"),
    [
        ("any", TOOLS, r"tool_choice must be none, auto, required or \{\"type\": \"function\", .*\}, got 'any'"),
        (5, TOOLS, r"tool_choice must be .*, got 5"),
        ({"type": "function", "name": "f"}, TOOLS, r"tool_choice must be .*"),
        ({"type": "function", "function": {"name": 5}}, TOOLS, r"tool_choice must be .*"),
        ({"type": "function", "function": {"name": "h"}}, TOOLS, r"tool_choice must name one of the tools, got 'h'"),
        ({"type": "allowed_tools", "allowed_tools": {}}, TOOLS, r"tool_choice has the type 'allowed_tools', .*"),
        ("required", [], r"tool_choice is 'required', but there are no tools; leave it out or give tools"),
        ("required", [], r"tool_choice is 'required', but there are no tools; .*"),
        ({"type": "function", "function": {"name": "f"}}, [], r"tool_choice is \{.*\}, but there are no tools; .*"),
    ],
)
def test_refused_choices(value, tools, words):
    with pytest.raises(ValueError, match=f"^{words}$"):
        read_tool_choice(value, tools)
