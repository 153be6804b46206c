"""The JSON object that holds a tool call, or its arguments, while its text arrives."""

import json
from abc import ABC, abstractmethod

from pelton.chat_parsing.json_scanner import JsonScanner, Member
from pelton.checks import has_lone_surrogate

NAME = "name"
ARGUMENTS = ("arguments", "parameters")
"""Models call them one or the other."""
MAX_MEMBERS = 16
"""Of an object that is a call."""


class CallReader(ABC):
    """Reads one object. Its arguments can be taken as they come, or all at the end."""

    def __init__(self, max_members: int | None = None) -> None:
        self._scanner = JsonScanner(max_members)

    @property
    def is_complete(self) -> bool:
        return self._scanner.is_complete

    @property
    def is_malformed(self) -> bool:
        """Whether the text is no JSON object."""
        return self._scanner.is_malformed

    @abstractmethod
    def scan(self, text: str, at: int) -> int:
        """Read on from `at`; return where the object, or the text, ends."""

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The function, as soon as it is known and its arguments have begun. What was taken then is a call."""

    @abstractmethod
    def take_arguments(self) -> str:
        """The arguments' text that was not taken yet. Only when `name` is known."""

    @property
    @abstractmethod
    def is_call(self) -> bool:
        """Whether the complete object is a call, without doubt."""


class ArgumentsReader(CallReader):
    """The object is the arguments of a function whose name is known."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._pieces: list[str] = []

    def scan(self, text: str, at: int) -> int:
        end = self._scanner.scan(text, at)
        self._pieces.append(text[at:end])
        return end

    @property
    def name(self) -> str | None:
        return self._name if self._scanner.num_scanned else None

    def take_arguments(self) -> str:
        text = "".join(self._pieces)
        self._pieces.clear()
        return text

    @property
    def is_call(self) -> bool:
        return self.is_complete


class CallObjectReader(CallReader):
    """The object has the name and the arguments of a function as members, and perhaps others."""

    def __init__(self) -> None:
        super().__init__(MAX_MEMBERS)
        self._pieces: list[str] = []
        """The text; or once arguments have been taken, those that were not."""
        self._num_read = 0
        """Members that have been looked at."""
        self._name: str | None = None
        self._arguments: Member | None = None
        self._num_names = 0
        self._num_arguments = 0
        self._has_taken = False

    def scan(self, text: str, at: int) -> int:
        begin = self._scanner.num_scanned
        end = self._scanner.scan(text, at)
        if self._has_taken:
            assert self._arguments is not None
            value_end = self._arguments.value_end
            num_chars = end - at if value_end < 0 else max(0, value_end - begin)
            self._pieces.append(text[at : min(end, at + num_chars)])
            return end
        self._pieces.append(text[at:end])
        if self._has_news():
            self._read_members("".join(self._pieces))
        return end

    @property
    def name(self) -> str | None:
        return self._name if self._arguments is not None else None

    def take_arguments(self) -> str:
        text = "".join(self._pieces)
        self._pieces.clear()
        if not self._has_taken:
            self._has_taken = True
            assert self._arguments is not None
            end = self._arguments.value_end
            text = text[self._arguments.value_start : end if end >= 0 else len(text)]
        return text

    @property
    def is_call(self) -> bool:
        return self.is_complete and self.name is not None and self._num_names == self._num_arguments == 1

    def _has_news(self) -> bool:
        """Whether a member can be looked at: a value has begun, or ended where it is a text that may be the name."""
        members = self._scanner.members
        return self._num_read < len(members) and _is_readable(members[self._num_read])

    def _read_members(self, text: str) -> None:
        members = self._scanner.members
        while self._num_read < len(members) and _is_readable(members[self._num_read]):
            member = members[self._num_read]
            self._num_read += 1
            key = json.loads(text[member.key_start : member.key_end])
            if key == NAME:
                self._num_names += 1
                if self._num_names == 1 and member.first_char == '"':
                    name = json.loads(text[member.value_start : member.value_end])
                    self._name = name if name and not has_lone_surrogate(name) else None
            elif key in ARGUMENTS:
                self._num_arguments += 1
                if self._num_arguments == 1 and member.first_char == "{":
                    self._arguments = member


def _is_readable(member: Member) -> bool:
    return member.value_end >= 0 or (member.value_start >= 0 and member.first_char != '"')
