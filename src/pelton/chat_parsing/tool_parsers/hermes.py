"""Calls as Hermes and Qwen models write them."""

from pelton.chat_parsing.tool_parsers.base import CallSyntax
from pelton.chat_parsing.tool_parsers.object_parser import ObjectParser

START = "<tool_call>"
END = "</tool_call>"


class HermesParser(ObjectParser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, with whitespace around the object, anywhere.

    The end of the text may stand for the end tag, which some models have as a stop token.
    """

    tags = (START,)
    syntax = CallSyntax("arguments", f"{START}\n", f"\n{END}\n{START}\n", f"\n{END}")
    _has_object = False

    def _begin_call(self) -> None:
        self._state = self._before_object

    def _end_object(self) -> None:
        self._has_object = True
        self._expect(END, self._end_call)

    def _end_call(self) -> None:
        super()._end_call()
        self._to_content()

    def _to_content(self) -> None:
        self._has_object = False
        super()._to_content()

    def _finish_call(self) -> None:
        if self._has_object:
            self._end_call()
