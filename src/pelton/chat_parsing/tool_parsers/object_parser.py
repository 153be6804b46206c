"""Finds tool calls whose arguments are a JSON object."""

from abc import abstractmethod
from collections.abc import Callable

from pelton.chat_parsing.call_reader import CallObjectReader, CallReader
from pelton.chat_parsing.tool_parsers.base import ToolParser


class ObjectParser(ToolParser):
    """What formats have in common that write calls, or arguments, as JSON objects.

    With `streams`, for texts that a grammar makes, arguments are passed on as they come, once the name is known, and
    what is cut off before is dropped: it is nobody's answer.
    """

    def __init__(
        self, *, new_id: Callable[[], str] | None = None, parallel: bool = True, streams: bool = False
    ) -> None:
        super().__init__(new_id=new_id, parallel=parallel)
        self._streams = streams
        self._reader: CallReader = CallObjectReader()
        self._streamed_index: int | None = None
        """Of the call whose arguments are passed on as they come."""

    @property
    def is_within_call(self) -> bool:
        return self._streamed_index is not None

    def _finish_call(self) -> None:
        if self._streams:
            self._held.clear()

    @abstractmethod
    def _end_object(self) -> None:
        """Set the state for what comes after the object of a call, which has been read; `_end_call` where the call
        ends."""

    def _new_reader(self) -> CallReader:
        return CallObjectReader()

    def _before_object(self, text: str, at: int) -> int:
        at = self._hold_space(text, at)
        if at < len(text):
            if text[at] == "{":
                self._reader = self._new_reader()
                self._state = self._in_object
            else:
                self._refuse()
        return at

    def _in_object(self, text: str, at: int) -> int:
        reader = self._reader
        end = reader.scan(text, at)
        name = reader.name if self._streams else None
        if name is None:
            self._held.append(text[at:end])
        else:
            if self._streamed_index is None:
                self._streamed_index = self._add_call(name)
            self._add_arguments(self._streamed_index, reader.take_arguments())
        if reader.is_malformed or (reader.is_complete and name is None and not reader.is_call):
            self._refuse()
        elif reader.is_complete:
            self._end_object()
        return end

    def _end_call(self) -> None:
        """The object that was read is a call, and all that is held belongs to it."""
        if self._streamed_index is None:
            name = self._reader.name
            assert name is not None
            self._add_arguments(self._add_call(name), self._reader.take_arguments())
        self._streamed_index = None
        self._drop_held()

    def _refuse(self) -> None:
        self._streamed_index = None
        super()._refuse()
