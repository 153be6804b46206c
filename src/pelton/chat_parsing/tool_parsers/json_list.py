"""Calls as plain JSON, without tags."""

from pelton.chat_parsing.tool_parsers.base import CallSyntax
from pelton.chat_parsing.tool_parsers.object_parser import ObjectParser


class ListParser(ObjectParser):
    """Calls as a JSON array. Each is passed on when its object ends, whatever follows it."""

    _in_list = False

    def _end_object(self) -> None:
        self._end_call()
        self._state = self._after_item if self._in_list else self._in_content

    def _begin_list(self, text: str, at: int) -> int:
        self._in_list = True
        self._held.append(text[at])
        self._state = self._before_object
        return at + 1

    def _after_item(self, text: str, at: int) -> int:
        at = self._hold_space(text, at)
        if at == len(text):
            return at
        if text[at] == ",":
            self._held.append(",")
            self._state = self._before_object
            return at + 1
        self._to_content()
        if text[at] == "]":
            self._drop_held()
            return at + 1
        return at

    def _to_content(self) -> None:
        self._in_list = False
        super()._to_content()


class JsonParser(ListParser):
    """`[{"name": ..., "arguments": {...}}, ...]` or one such object, at the beginning of the text."""

    openers = "[{"
    syntax = CallSyntax("arguments")

    def _begin_call(self) -> None:
        self._state = self._at_opener

    def _at_opener(self, text: str, at: int) -> int:
        if text[at] == "[":
            return self._begin_list(text, at)
        self._state = self._before_object
        return at
