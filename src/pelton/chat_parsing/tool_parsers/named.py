"""The arguments of a call whose function is known."""

from collections.abc import Callable

from pelton.chat_parsing.call_reader import ArgumentsReader, CallReader
from pelton.chat_parsing.tool_parsers.object_parser import ObjectParser


class NamedParser(ObjectParser):
    """A JSON object at the beginning of the text, which is the arguments of one function. They are passed on as they
    come: a grammar makes the text."""

    openers = "{"

    def __init__(self, name: str, *, new_id: Callable[[], str] | None = None) -> None:
        super().__init__(new_id=new_id, streams=True)
        self._name = name

    def _begin_call(self) -> None:
        self._state = self._before_object

    def _new_reader(self) -> CallReader:
        return ArgumentsReader(self._name)

    def _end_object(self) -> None:
        self._end_call()
        self._to_content()
