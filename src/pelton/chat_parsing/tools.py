"""The tools of a request, and which of them may be called."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pelton.checks import check_flag, check_unicode
from pelton.error_text import message_of, shown
from pelton.structured_outputs_params import MAX_SOURCE_LENGTH

MAX_TOOLS = 128
MAX_DEPTH = 64
"""Objects and lists within each other, in the parameters of a tool."""

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_MODES = ("none", "auto", "required")
_NAMED_FORM = '{"type": "function", "function": {"name": ...}}'


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """The JSON schema of its arguments, which are an object; None for a function that has none."""
    strict: bool = False
    """Whether its arguments must be as the schema says, also where the model is free to call it."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may or must call tools."""

    mode: Literal["none", "auto", "required", "named"]
    name: str | None = None
    """The tool to call, if it is named."""


def read_tools(value: Any) -> list[Tool]:
    """The tools of a request; none for None and an empty list. Raises ValueError that names field, value and remedy."""
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise ValueError(f"tools must be a list, got {shown(value)}")
    if len(value) > MAX_TOOLS:
        raise ValueError(f"tools must hold at most {MAX_TOOLS} tools, got {len(value)}")
    tools = [_read_tool(f"tools[{index}]", entry) for index, entry in enumerate(value)]
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise ValueError(f"tools[{index}].function.name must differ from those before it, got {shown(tool.name)}")
        seen.add(tool.name)
    length = sum(len(json.dumps([tool.description, tool.parameters], ensure_ascii=False)) for tool in tools)
    if length > MAX_SOURCE_LENGTH:
        raise ValueError(
            f"tools must have at most {MAX_SOURCE_LENGTH} characters as JSON, got {length}; leave some out"
        )
    return tools


def read_tool_choice(value: Any, tools: Sequence[Tool]) -> ToolChoice:
    """The choice of a request with these tools. None means auto, or none where there are no tools.

    Raises ValueError that names field, value and remedy.
    """
    if value is None:
        return ToolChoice("auto" if tools else "none")
    choice = _read_mode(value)
    if choice.mode == "none" or (choice.mode == "auto" and not tools):
        return ToolChoice("none")
    if not tools:
        raise ValueError(f"tool_choice is {shown(value)}, but there are no tools; leave it out or give tools")
    if choice.name is not None and choice.name not in [tool.name for tool in tools]:
        raise ValueError(f"tool_choice must name one of the tools, got {shown(choice.name)}")
    return choice


def _read_tool(field: str, entry: Any) -> Tool:
    if not isinstance(entry, Mapping):
        raise ValueError(f'{field} must be {{"type": "function", "function": ...}}, got {shown(entry)}')
    if entry.get("type", "function") != "function":
        raise ValueError(f"{field}.type must be 'function', got {shown(entry.get('type'))}")
    function = entry.get("function")
    field = f"{field}.function"
    if not isinstance(function, Mapping):
        raise ValueError(f"{field} must be an object with a name, got {shown(function)}")
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{field}.name must be 1 to 64 letters, digits, underscores, dots and hyphens, got {shown(name)}"
        )
    if description is not None:
        if not isinstance(description, str):
            raise ValueError(f"{field}.description must be a string, got {shown(description)}")
        check_unicode(f"{field}.description", description)
    strict = function.get("strict")
    if strict is not None:
        check_flag(f"{field}.strict", strict)
    return Tool(name, description, _read_parameters(f"{field}.parameters", function.get("parameters")), bool(strict))


def _read_parameters(field: str, value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError(f"{field} must be a JSON schema, as an object, got {shown(value)}")
    _check_depth(field, value)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{field} must hold plain JSON data: {message_of(error)}") from None
    check_unicode(field, text)
    types = value.get("type", "object")
    if types != "object" and not (isinstance(types, list) and "object" in types):
        raise ValueError(f"{field}.type must be 'object', for arguments have names, got {shown(types)}")
    return value


def _check_depth(field: str, value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        parts = [list(part.values()) if isinstance(part, dict) else part for part in level]
        level = [child for children in parts for child in children if isinstance(child, dict | list)]
        if not level:
            return
    raise ValueError(f"{field} must be nested at most {MAX_DEPTH} levels deep; make it flatter")


def _read_mode(value: Any) -> ToolChoice:
    match value:
        case "none" | "auto" | "required":
            return ToolChoice(value)
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice("named", name)
        case {"type": "allowed_tools"}:
            raise ValueError(
                "tool_choice has the type 'allowed_tools', which is not supported by this version of Pelton; give only "
                "the tools that are allowed, with tool_choice 'auto' or 'required'"
            )
    raise ValueError(f"tool_choice must be {', '.join(_MODES)} or {_NAMED_FORM}, got {shown(value)}")
