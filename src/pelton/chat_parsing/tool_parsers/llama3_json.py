"""Calls as Llama 3 models write them."""

from pelton.chat_parsing.tool_parsers.base import CallSyntax
from pelton.chat_parsing.tool_parsers.object_parser import ObjectParser


class Llama3JsonParser(ObjectParser):
    """`{"name": ..., "parameters": {...}}`, at the beginning of the text or after `<|python_tag|>`, and further ones
    after it, with whitespace or a semicolon between them."""

    tags = ("<|python_tag|>",)
    openers = "{"
    needs_special_tokens = True
    syntax = CallSyntax("parameters")

    def _begin_call(self) -> None:
        self._state = self._before_object

    def _end_object(self) -> None:
        self._end_call()
        self._state = self._before_semicolon

    def _before_semicolon(self, text: str, at: int) -> int:
        at = self._hold_space(text, at)
        if at < len(text):
            self._state = self._before_next
            if text[at] == ";":
                self._drop_held()
                return at + 1
        return at

    def _before_next(self, text: str, at: int) -> int:
        at = self._hold_space(text, at)
        if at < len(text):
            if text[at] == "{":
                self._begin_call()
            else:
                self._to_content()
        return at
