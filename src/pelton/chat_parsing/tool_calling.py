"""What a request's tools and tool choice ask for: how its output is constrained, and how it is read."""

from collections.abc import Callable, Sequence
from typing import Any

from pelton.chat_parsing.tool_parsers import ToolParser, find_tool_parser
from pelton.chat_parsing.tool_parsers.json_list import JsonParser
from pelton.chat_parsing.tool_parsers.named import NamedParser
from pelton.chat_parsing.tools import Tool, ToolChoice
from pelton.error_text import shown
from pelton.structured_outputs_params import StructuredOutputsParams

MAX_CALLS = 128
"""Of one message, where a grammar makes it."""

_DATA = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords of JSON schemas whose values are no schemas."""
_MAPS = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})
"""Keywords whose values hold schemas by names."""


def call_constraint(
    tools: Sequence[Tool], choice: ToolChoice, *, parallel: bool = True
) -> StructuredOutputsParams | None:
    """What the output must be: with a named tool, its arguments; if calls are required, an array of objects with `name`
    and `parameters`, of one unless `parallel`. None where the model is free.

    Raises ValueError for tools whose schemas cannot be put together.
    """
    if choice.mode == "named":
        return StructuredOutputsParams(json=_arguments_schema(_tool(tools, choice)))
    if choice.mode == "required":
        return StructuredOutputsParams(json=_calls_schema(tools, MAX_CALLS if parallel else 1))
    return None


def make_tool_parser(
    choice: ToolChoice, parser: str | None, *, parallel: bool = True, new_id: Callable[[], str] | None = None
) -> ToolParser | None:
    """What reads an output for this choice: of a model that is free, the parser of this name; of one that is
    constrained as `call_constraint` says, one for that. None where there are no calls.

    `new_id` makes the ids of calls; by default as the model's templates want them.
    Raises ValueError for a parser that there is not, and if the model is free and there is none.
    """
    if choice.mode == "none":
        return None
    parser_class = None if parser is None else find_tool_parser(parser)
    if choice.mode == "auto":
        if parser_class is None:
            raise ValueError(
                "tool_choice is 'auto', but how the model writes calls is not known; set tool_choice to 'required' or "
                "to a function, or start the server with a tool_call_parser"
            )
        return parser_class(new_id=new_id, parallel=parallel)
    new_id = new_id or (ToolParser if parser_class is None else parser_class).new_id
    if choice.name is not None:
        return NamedParser(choice.name, new_id=new_id)
    return JsonParser(new_id=new_id, parallel=parallel, streams=True)


def _tool(tools: Sequence[Tool], choice: ToolChoice) -> Tool:
    return next(tool for tool in tools if tool.name == choice.name)


def _arguments_schema(tool: Tool) -> dict[str, Any]:
    """The tool's parameters, which are an object even where they do not say so."""
    if tool.parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if "type" not in tool.parameters:
        return {"type": "object", **tool.parameters}
    return {**tool.parameters, "type": "object"}


def _calls_schema(tools: Sequence[Tool], max_calls: int) -> dict[str, Any]:
    """Each tool's schema is a definition of its own, as a whole, so that all that it refers to stays within it."""
    definitions = {f"tool_{index}": _arguments_schema(tool) for index, tool in enumerate(tools)}
    return {
        **_draft(list(definitions.values())),
        "type": "array",
        "minItems": 1,
        "maxItems": max_calls,
        "items": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"name": {"const": tool.name}, "parameters": {"$ref": f"#/$defs/{key}"}},
                    "required": ["name", "parameters"],
                    "additionalProperties": False,
                }
                for tool, key in zip(tools, definitions, strict=True)
            ]
        },
        "$defs": {key: _Mover(key, schema).moved for key, schema in definitions.items()},
    }


def _draft(schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The `$schema` of all of these that have one."""
    drafts = [schema["$schema"] for schema in schemas if "$schema" in schema]
    for draft in drafts:
        if draft != drafts[0]:
            raise ValueError(
                f"the parameters of all tools must have the same $schema, got {shown(drafts[0])} and {shown(draft)}"
            )
    return {"$schema": drafts[0]} if drafts else {}


class _Mover:
    """Makes a schema a definition of another one: what referred to its top refers to the definition."""

    def __init__(self, key: str, schema: dict[str, Any]) -> None:
        self._key = key
        self._id = schema.get("$id", "")
        top = {name: value for name, value in schema.items() if name not in ("$id", "$schema")}
        self.moved = self._schema(top)

    def _schema(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self._schema(entry) for entry in schema]
        if not isinstance(schema, dict) or "$id" in schema:  # one with an id is where its references begin
            return schema
        return {name: self._value(name, value) for name, value in schema.items()}

    def _value(self, name: str, value: Any) -> Any:
        if name in _DATA:
            return value
        if name in _MAPS and isinstance(value, dict):
            return {key: self._schema(entry) for key, entry in value.items()}
        if name == "$ref" and isinstance(value, str):
            return self._reference(value)
        if name == "$anchor" and isinstance(value, str):
            return f"{self._key}_{value}"
        return self._schema(value)

    def _reference(self, reference: str) -> str:
        address, _, place = reference.partition("#")
        if address not in ("", self._id):
            return reference
        if place and not place.startswith("/"):  # an anchor
            return f"#{self._key}_{place}"
        return f"#/$defs/{self._key}{place}"
