"""Calls as Mistral models write them."""

import re

from pelton.chat_parsing.call_ids import new_mistral_call_id
from pelton.chat_parsing.call_reader import ArgumentsReader, CallReader
from pelton.chat_parsing.json_scanner import match_end
from pelton.chat_parsing.tool_parsers.base import CallSyntax
from pelton.chat_parsing.tool_parsers.json_list import ListParser

_NAME = re.compile(r"[a-zA-Z0-9_.-]*")
_ID = re.compile(r"[a-zA-Z0-9]*")
_MAX_NAME = 64
_ARGUMENTS = "[ARGS]"
_CALL_ID = "[CALL_ID]"


class MistralParser(ListParser):
    """After `[TOOL_CALLS]`, anywhere: `[{"name": ..., "arguments": {...}}, ...]` of older models, or one call of newer
    ones, `name{...}` or `name[ARGS]{...}`. The model's own id, as in `name[CALL_ID]...[ARGS]{...}`, is not used."""

    tags = ("[TOOL_CALLS]",)
    needs_special_tokens = True
    syntax = CallSyntax("arguments", "[TOOL_CALLS][", ", ", "]")
    new_id = staticmethod(new_mistral_call_id)
    _name = ""

    def _begin_call(self) -> None:
        self._name = ""
        self._state = self._after_tag

    def _new_reader(self) -> CallReader:
        return ArgumentsReader(self._name) if self._name else super()._new_reader()

    def _after_tag(self, text: str, at: int) -> int:
        at = self._hold_space(text, at)
        if at == len(text):
            return at
        if text[at] == "[":
            return self._begin_list(text, at)
        if match_end(_NAME, text, at) == at:
            self._refuse()
        else:
            self._state = self._in_name
        return at

    def _in_name(self, text: str, at: int) -> int:
        end = match_end(_NAME, text, at)
        if len(self._name) + end - at > _MAX_NAME:
            end = at + _MAX_NAME - len(self._name)
            self._held.append(text[at:end])
            self._refuse()
            return end
        self._held.append(text[at:end])
        self._name += text[at:end]
        if end < len(text):
            self._matched = ""
            self._state = self._in_mark if text[end] == "[" else self._before_object
        return end

    def _in_mark(self, text: str, at: int) -> int:
        """`[ARGS]` or `[CALL_ID]`."""
        matched = self._matched + text[at]
        if not _ARGUMENTS.startswith(matched) and not _CALL_ID.startswith(matched):
            self._refuse()
            return at
        self._held.append(text[at])
        self._matched = matched
        if matched == _ARGUMENTS:
            self._state = self._before_object
        elif matched == _CALL_ID:
            self._state = self._in_id
        return at + 1

    def _in_id(self, text: str, at: int) -> int:
        end = match_end(_ID, text, at)
        self._held.append(text[at:end])
        if end < len(text):
            self._expect(_ARGUMENTS, self._after_mark)
        return end

    def _after_mark(self) -> None:
        self._state = self._before_object
