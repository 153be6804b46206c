"""Reasoning parsers by name."""

from pelton.chat_parsing.reasoning_parsers.base import ReasoningParser
from pelton.chat_parsing.reasoning_parsers.deepseek_r1 import DeepSeekR1ReasoningParser
from pelton.chat_parsing.reasoning_parsers.qwen3 import Qwen3ReasoningParser
from pelton.checks import check_choice

REASONING_PARSERS: dict[str, type[ReasoningParser]] = {
    "deepseek_r1": DeepSeekR1ReasoningParser,
    "qwen3": Qwen3ReasoningParser,
}


def find_reasoning_parser(name: str) -> type[ReasoningParser]:
    """The class of a parser, by its name. Raises ValueError for others."""
    check_choice("reasoning_parser", name, REASONING_PARSERS)
    return REASONING_PARSERS[name]
