"""Thinking as Qwen3 models write it."""

from pelton.chat_parsing.reasoning_parsers.base import ReasoningParser


class Qwen3ReasoningParser(ReasoningParser):
    """`<think>...</think>` at the beginning of the output, or no thinking at all. Templates that are told not to let it
    think close an empty thought in the prompt; those of models that always think open one there."""

    thinks_by_default = False
