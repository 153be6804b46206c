"""Tool parsers by name, and which of them a chat template asks for."""

from pelton.chat_parsing.tool_parsers.base import ToolParser
from pelton.chat_parsing.tool_parsers.hermes import HermesParser
from pelton.chat_parsing.tool_parsers.json_list import JsonParser
from pelton.chat_parsing.tool_parsers.llama3_json import Llama3JsonParser
from pelton.chat_parsing.tool_parsers.mistral import MistralParser
from pelton.chat_parsing.tool_parsers.pythonic import PythonicParser
from pelton.checks import check_choice

TOOL_PARSERS: dict[str, type[ToolParser]] = {
    "hermes": HermesParser,
    "json": JsonParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
    "pythonic": PythonicParser,
}
ALIASES = {
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "qwen": "hermes",
    "qwen2_5": "hermes",
    "qwen3": "hermes",
}


def find_tool_parser(name: str) -> type[ToolParser]:
    """The class of a parser, by its name or an alias. Raises ValueError for others."""
    check_choice("tool_call_parser", name, [*TOOL_PARSERS, *ALIASES])
    return TOOL_PARSERS[ALIASES.get(name, name)]


def detect(chat_template: str) -> str | None:
    """The name of the parser for the calls that a chat template tells the model to write; None if it tells of none, or
    of a format that no parser reads."""
    if "<tool_call>" in chat_template:
        has_other_inside = any(tag in chat_template for tag in ("<function=", "<arg_key>", "<parameter="))
        return None if has_other_inside else "hermes"
    if "[TOOL_CALLS]" in chat_template:
        return "mistral"
    if "[func_name1(" in chat_template or "<|python_start|>" in chat_template:
        return "pythonic"
    # Llama 3's own templates write the object out; some that are made from them name the tag only.
    if '{"name": function name, "parameters"' in chat_template or "<|python_tag|>" in chat_template:
        return "llama3_json"
    return None
