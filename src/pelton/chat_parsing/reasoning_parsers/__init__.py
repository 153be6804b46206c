"""Parsers for the ways in which models think before they answer."""

from pelton.chat_parsing.reasoning_parsers.base import ReasoningParser
from pelton.chat_parsing.reasoning_parsers.registry import REASONING_PARSERS, find_reasoning_parser

__all__ = ["REASONING_PARSERS", "ReasoningParser", "find_reasoning_parser"]
