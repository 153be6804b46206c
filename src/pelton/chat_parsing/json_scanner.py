"""Follows the text of a JSON object that arrives in pieces."""

import re
from collections.abc import Callable
from dataclasses import dataclass

WHITESPACE = " \t\n\r"
"""What JSON has between its tokens."""
MAX_DEPTH = 128
"""Objects and arrays within each other."""

_SPACE = re.compile(f"[{WHITESPACE}]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_DIGITS = "0123456789"
_NUMBER: dict[str, dict[str, str]] = {
    "sign": {"0": "zero", "123456789": "integer"},
    "zero": {".": "point", "eE": "exponent"},
    "integer": {_DIGITS: "integer", ".": "point", "eE": "exponent"},
    "point": {_DIGITS: "fraction"},
    "fraction": {_DIGITS: "fraction", "eE": "exponent"},
    "exponent": {_DIGITS: "power", "+-": "power sign"},
    "power sign": {_DIGITS: "power"},
    "power": {_DIGITS: "power"},
}
"""Place in a number -> characters that may follow -> the place after them."""
_NUMBER_ENDS = frozenset({"zero", "integer", "fraction", "power"})


def match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where that ends which matches at this place, perhaps nothing."""
    match = pattern.match(text, at)
    assert match is not None
    return match.end()


def skip_space(text: str, at: int) -> int:
    """Where the whitespace at this place ends."""
    return match_end(_SPACE, text, at)


@dataclass(slots=True)
class Member:
    """Where a member of the outermost object is: offsets from the object's beginning, -1 while not known."""

    key_start: int
    key_end: int = -1
    value_start: int = -1
    value_end: int = -1
    first_char: str = ""
    """Of the value."""


class JsonScanner:
    """Reads one object, strictly as RFC 8259 has it, and finds the members of the outermost level.

    What it says does not depend on where the pieces are cut, except that the text may end anywhere.
    """

    def __init__(self, max_members: int | None = None) -> None:
        """`max_members`: an object with more of them, on the outermost level, is malformed."""
        self._max_members = max_members
        self.num_scanned = 0
        """Characters read."""
        self.members: list[Member] = []
        self.is_complete = False
        self.is_malformed = False
        self._closers: list[str] = []
        """What closes the objects and arrays that are open, the innermost last."""
        self._state: Callable[[str, int], int] = self._root
        self._base = 0
        """Offset of the piece that is being read."""
        self._is_key = False
        """Whether the string that is being read is a key."""
        self._left = ""
        """What must follow of a literal."""
        self._num_hex = 0
        """Digits that must follow of an escape."""
        self._place = ""
        """In a number."""

    def scan(self, text: str, at: int) -> int:
        """Read on from `at`. Returns where it stopped: at the end of the text, behind the object (`is_complete`), or at
        the first character that cannot be there (`is_malformed`)."""
        self._base = self.num_scanned - at
        while at < len(text) and not self.is_complete and not self.is_malformed:
            at = self._state(text, at)
        self.num_scanned = self._base + at
        return at

    def _root(self, text: str, at: int) -> int:
        return self._value(text, at) if text[at] == "{" else self._refuse(at)

    def _value(self, text: str, at: int) -> int:
        at = skip_space(text, at)
        if at == len(text):
            return at
        char = text[at]
        if len(self._closers) == 1:
            self.members[-1].value_start = self._base + at
            self.members[-1].first_char = char
        if char == "{":
            return self._open("}", self._first_key, at)
        if char == "[":
            return self._open("]", self._first_item, at)
        if char == '"':
            self._is_key = False
            self._state = self._string
        elif char in _LITERALS:
            self._left = _LITERALS[char][1:]
            self._state = self._literal
        elif char == "-":
            self._place = "sign"
            self._state = self._number
        else:
            self._place = "sign"
            return self._number(text, at)
        return at + 1

    def _open(self, closer: str, state: Callable[[str, int], int], at: int) -> int:
        if len(self._closers) == MAX_DEPTH:
            return self._refuse(at)
        self._closers.append(closer)
        self._state = state
        return at + 1

    def _first_key(self, text: str, at: int) -> int:
        return self._key(text, at, may_close=True)

    def _key(self, text: str, at: int, may_close: bool = False) -> int:
        at = skip_space(text, at)
        if at == len(text):
            return at
        if text[at] == "}" and may_close:
            return self._close(at)
        if text[at] != '"':
            return self._refuse(at)
        if len(self._closers) == 1:
            if len(self.members) == self._max_members:
                return self._refuse(at)
            self.members.append(Member(self._base + at))
        self._is_key = True
        self._state = self._string
        return at + 1

    def _colon(self, text: str, at: int) -> int:
        at = skip_space(text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            return self._refuse(at)
        self._state = self._value
        return at + 1

    def _first_item(self, text: str, at: int) -> int:
        at = skip_space(text, at)
        if at == len(text):
            return at
        if text[at] == "]":
            return self._close(at)
        self._state = self._value
        return at

    def _after_value(self, text: str, at: int) -> int:
        at = skip_space(text, at)
        if at == len(text):
            return at
        if text[at] == self._closers[-1]:
            return self._close(at)
        if text[at] != ",":
            return self._refuse(at)
        self._state = self._key if self._closers[-1] == "}" else self._value
        return at + 1

    def _close(self, at: int) -> int:
        self._closers.pop()
        self._end_value(at + 1)
        return at + 1

    def _end_value(self, end: int) -> None:
        if len(self._closers) == 1:
            self.members[-1].value_end = self._base + end
        self.is_complete = not self._closers
        self._state = self._after_value

    def _string(self, text: str, at: int) -> int:
        match = _PLAIN.match(text, at)
        assert match is not None  # it may be empty
        at = match.end()
        if at == len(text):
            return at
        if text[at] == "\\":
            self._state = self._escape
        elif text[at] != '"':
            return self._refuse(at)
        elif not self._is_key:
            self._end_value(at + 1)
        else:
            if len(self._closers) == 1:
                self.members[-1].key_end = self._base + at + 1
            self._state = self._colon
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        if text[at] == "u":
            self._num_hex = 4
            self._state = self._hex_digit
        elif text[at] in '"\\/bfnrt':
            self._state = self._string
        else:
            return self._refuse(at)
        return at + 1

    def _hex_digit(self, text: str, at: int) -> int:
        if text[at] not in "0123456789abcdefABCDEF":
            return self._refuse(at)
        self._num_hex -= 1
        if not self._num_hex:
            self._state = self._string
        return at + 1

    def _literal(self, text: str, at: int) -> int:
        if text[at] != self._left[0]:
            return self._refuse(at)
        self._left = self._left[1:]
        if not self._left:
            self._end_value(at + 1)
        return at + 1

    def _number(self, text: str, at: int) -> int:
        self._state = self._number
        for chars, place in _NUMBER[self._place].items():
            if text[at] in chars:
                self._place = place
                return at + 1
        if self._place not in _NUMBER_ENDS:
            return self._refuse(at)
        self._end_value(at)
        return at

    def _refuse(self, at: int) -> int:
        self.is_malformed = True
        return at
