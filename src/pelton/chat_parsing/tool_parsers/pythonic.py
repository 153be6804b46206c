"""Calls as Python expressions."""

from pelton.chat_parsing.python_calls import PythonCall, PythonListScanner, read_python_calls
from pelton.chat_parsing.tool_parsers.base import ToolParser

_END = "<|python_end|>"


class PythonicParser(ToolParser):
    """`[f(a=1, b="x"), g()]`, at the beginning of the text or after a tag; arguments are literals. The list is held
    until it is complete: it is calls as a whole, or content."""

    tags = ("<|python_start|>", "<|python_tag|>")
    openers = "["
    needs_special_tokens = True

    def _begin_call(self) -> None:
        self._state = self._before_list

    def _before_list(self, text: str, at: int) -> int:
        at = self._hold_space(text, at)
        if at < len(text):
            if text[at] == "[":
                self._scanner = PythonListScanner()
                self._list: list[str] = []
                self._state = self._in_list
            else:
                self._refuse()
        return at

    def _in_list(self, text: str, at: int) -> int:
        end = self._scanner.scan(text, at)
        self._held.append(text[at:end])
        self._list.append(text[at:end])
        if self._scanner.is_malformed:
            self._refuse()
        elif self._scanner.is_complete:
            self._end_list(read_python_calls("".join(self._list)))
        return end

    def _end_list(self, calls: list[PythonCall]) -> None:
        if not calls:
            self._refuse()
            return
        for call in calls:
            self._add_arguments(self._add_call(call.name), call.arguments)
        self._expect(_END, self._end_tag)

    def _end_tag(self) -> None:
        self._drop_held()
        self._to_content()
