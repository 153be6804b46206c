"""What a request's tools and tool choice ask for: how its output is constrained, and how it is read."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from pelton.chat_parsing.tool_parsers import ToolParser, find_tool_parser
from pelton.chat_parsing.tool_parsers.base import CallSyntax
from pelton.chat_parsing.tool_parsers.json_list import JsonParser
from pelton.chat_parsing.tool_parsers.named import NamedParser
from pelton.chat_parsing.tools import Tool, ToolChoice
from pelton.error_text import shown
from pelton.structured_outputs_params import StructuredOutputsParams

MAX_CALLS = 128
"""Of one message, where a grammar makes it."""

_TOOL_SCHEMA = re.compile(
    r"(?<= at )/(?:(?:items/)?anyOf|format/(?:elements/1|tags/0)/content/tags)/(\d+)/"
    r"(?:properties/(?:parameters|arguments)/\$ref|content)"
)
"""Where the schemas of tools are in the constraints that are made of them."""
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


def free_constraint(
    tools: Sequence[Tool], parser: type[ToolParser], answer: StructuredOutputsParams | None, *, parallel: bool = True
) -> StructuredOutputsParams | None:
    """What the output must be if the model is free to call or not, and `parser` reads its calls.

    With `answer`: that, or calls of these tools, and nothing else. Without: any text, in which calls are of these
    tools, with arguments as those want them that are `strict`; None if none of them is, or the format has no tag that
    tells a call from text.

    Raises ValueError for an answer beside which there is no room for calls.
    """
    syntax = parser.syntax
    if answer is None:
        if syntax is None or not syntax.begin or not any(tool.strict for tool in tools):
            return None
        calls = _calls_tag([_loosened(tool) for tool in tools], syntax, parallel)
        tag = {"type": "triggered_tags", "triggers": list(parser.tags), "tags": [calls]}
        return StructuredOutputsParams(structural_tag=_tagged({**tag, "stop_after_first": not parallel}))
    if syntax is None:
        raise ValueError("no grammar can be made of calls in the format of this model")
    if syntax.begin:
        options = [_answer_tag(answer, parser.tags), _calls_tag(tools, syntax, parallel)]
        return _instead(answer, structural_tag=_tagged({"type": "or", "elements": options}))
    if answer.kind not in ("json", "json_object"):
        raise ValueError("calls in the format of this model are JSON, and the answer must be JSON, too")
    schema = _answer_schema(answer)
    schema = schema if isinstance(schema, dict) else {"anyOf": [schema]}
    return _instead(answer, json=_alternatives(tools, syntax.arguments, schema))


def in_words_of_tools(message: str) -> str:
    """A refusal of a constraint that was made here: it names the parameters of the tool that it is about, if it is
    about one, and the place in these."""
    found = _TOOL_SCHEMA.search(message)
    if found is None:
        return message
    rest = (
        message.replace(f"in the schema at {found[0]}: ", "").replace(f"{found[0]}/", "/").replace(found[0], "the top")
    )
    return f"tools[{found[1]}].function.parameters: {rest}"


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
                "tool_choice is 'auto', but how the model writes calls is not known, for its chat template does not "
                "tell; set tool_choice to 'required' or to a function, or start the server with --tool-call-parser, or "
                "with a --chat-template that tells of calls"
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
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": max_calls,
        "items": {"anyOf": _call_schemas(tools, "parameters")},
        **_definitions(_tool_schemas(tools)),
    }


def _alternatives(tools: Sequence[Tool], arguments: str, answer: dict[str, Any]) -> dict[str, Any]:
    """One call, or the answer."""
    return {
        "anyOf": [*_call_schemas(tools, arguments), {"$ref": "#/$defs/answer"}],
        **_definitions({"answer": answer, **_tool_schemas(tools)}),
    }


def _tool_schemas(tools: Sequence[Tool]) -> dict[str, dict[str, Any]]:
    return {f"tool_{index}": _arguments_schema(tool) for index, tool in enumerate(tools)}


def _call_schemas(tools: Sequence[Tool], arguments: str) -> list[dict[str, Any]]:
    """With the definitions of `_tool_schemas`."""
    return [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, arguments: {"$ref": f"#/$defs/tool_{index}"}},
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        for index, tool in enumerate(tools)
    ]


def _definitions(schemas: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Each schema is a definition of its own, as a whole, so that all that it refers to stays within it."""
    movers = {key: _Mover(key, schema) for key, schema in schemas.items()}
    seen: set[str] = set()
    for inner_id in (inner_id for mover in movers.values() for inner_id in mover.inner_ids):
        if inner_id in seen or inner_id.startswith("#"):
            raise ValueError(
                f"the schemas of tools, and of an answer beside them, cannot be put together, for parts of them have "
                f"the id {shown(inner_id)}; leave it out, and refer to the place by its path"
            )
        seen.add(inner_id)
    return {**_draft(list(schemas.values())), "$defs": {key: mover.moved for key, mover in movers.items()}}


def _loosened(tool: Tool) -> Tool:
    """With any arguments, unless it is strict."""
    return tool if tool.strict else replace(tool, parameters={})


def _instead(answer: StructuredOutputsParams, **constraint: Any) -> StructuredOutputsParams:
    """Another constraint, with the same options."""
    return msgspec.structs.replace(answer, **{answer.kind: None, **constraint})


def _tagged(tag_format: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "format": tag_format}


def _answer_schema(answer: StructuredOutputsParams) -> Any:
    """Of an answer by `json` or `json_object`."""
    return answer.json if answer.kind == "json" else {"type": "object"}


def _calls_tag(tools: Sequence[Tool], syntax: CallSyntax, parallel: bool) -> dict[str, Any]:
    """One call or several, with what is around them."""
    calls = [
        {
            "type": "tag",
            "begin": f'{{"name": {json.dumps(tool.name)}, "{syntax.arguments}": ',
            "content": {"type": "json_schema", "json_schema": _arguments_schema(tool)},
            "end": "}",
        }
        for tool in tools
    ]
    several = {"type": "tags_with_separator", "tags": calls, "separator": syntax.separator, "at_least_one": True}
    return {
        "type": "tag",
        "begin": syntax.begin,
        "content": {**several, "stop_after_first": not parallel},
        "end": syntax.end,
    }


def _answer_tag(answer: StructuredOutputsParams, tags: Sequence[str]) -> dict[str, Any]:
    """The answer as a part of a structural tag. No call can be read in it, with `tags` around it: objects in strings of
    JSON have their quotes escaped."""
    match answer.kind:
        case "json" | "json_object":
            return {"type": "json_schema", "json_schema": _answer_schema(answer)}
        case "choice":
            texts = answer.choice or []
            if not any(tag in text for text in texts for tag in tags):
                return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in texts]}
    raise ValueError(f"an answer by {answer.kind} leaves no room for a call")


def _draft(schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The `$schema` of all of these that have one."""
    drafts = [schema["$schema"] for schema in schemas if "$schema" in schema]
    for draft in drafts:
        if draft != drafts[0]:
            raise ValueError(
                "the schemas of tools, and of an answer beside them, must have the same $schema, got "
                f"{shown(drafts[0])} and {shown(draft)}"
            )
    return {"$schema": drafts[0]} if drafts else {}


class _Mover:
    """Makes a schema a definition of another one: what referred to its top refers to the definition."""

    def __init__(self, key: str, schema: dict[str, Any]) -> None:
        self._key = key
        self._id_keyword = "id" if "draft-04" in str(schema.get("$schema")) else "$id"
        self._id = schema.get(self._id_keyword, "")
        self.inner_ids: list[str] = []
        """Of parts that are where their references begin: they stay as they are."""
        top = {name: value for name, value in schema.items() if name not in (self._id_keyword, "$schema")}
        self.moved = self._schema(top)

    def _schema(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self._schema(entry) for entry in schema]
        if not isinstance(schema, dict):
            return schema
        if isinstance(inner_id := schema.get(self._id_keyword), str):
            self.inner_ids.append(inner_id)
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
