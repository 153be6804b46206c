"""From a model's text to the parts of a chat message: content, reasoning, tool calls. Pure text processing."""

from pelton.chat_parsing.chat_parser import ChatParser
from pelton.chat_parsing.parts import (
    CallArgumentsPart,
    CallBeginPart,
    ContentPart,
    ParsedMessage,
    Part,
    ReasoningPart,
    ToolCall,
    join_parts,
)
from pelton.chat_parsing.reasoning_parsers import find_reasoning_parser
from pelton.chat_parsing.tool_calling import call_constraint, free_constraint, in_words_of_tools, make_tool_parser
from pelton.chat_parsing.tool_parsers import detect, find_tool_parser
from pelton.chat_parsing.tools import Tool, ToolChoice, read_tool_choice, read_tools

__all__ = [
    "CallArgumentsPart",
    "CallBeginPart",
    "ChatParser",
    "ContentPart",
    "ParsedMessage",
    "Part",
    "ReasoningPart",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "call_constraint",
    "detect",
    "find_reasoning_parser",
    "find_tool_parser",
    "free_constraint",
    "in_words_of_tools",
    "join_parts",
    "make_tool_parser",
    "read_tool_choice",
    "read_tools",
]
