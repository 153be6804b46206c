"""Thinking as DeepSeek R1 and models distilled from it write it."""

from pelton.chat_parsing.reasoning_parsers.base import ReasoningParser


class DeepSeekR1ReasoningParser(ReasoningParser):
    """The output begins with the thoughts, with `<think>` or without it, as it ends the prompt of newer templates, and
    `</think>` ends them."""

    thinks_by_default = True
