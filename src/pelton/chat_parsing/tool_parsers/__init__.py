"""Parsers for the formats in which models write tool calls."""

from pelton.chat_parsing.tool_parsers.base import ToolParser
from pelton.chat_parsing.tool_parsers.registry import TOOL_PARSERS, detect, find_tool_parser

__all__ = ["TOOL_PARSERS", "ToolParser", "detect", "find_tool_parser"]
