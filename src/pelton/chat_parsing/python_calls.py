"""Reads lists of calls in Python's notation. Nothing is evaluated: only literals can be arguments.

Python's own parser is not used. It warns of escapes that Python does not know, which are usual in regular expressions,
and its depth of recursion follows the text.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pelton.chat_parsing.json_scanner import match_end, skip_space
from pelton.checks import has_lone_surrogate

MAX_DEPTH = 64
"""Brackets within each other."""

_CLOSERS = {"[": "]", "(": ")", "{": "}"}
_CODE = re.compile(r"""[^\[\](){}'"]*""")
_PLAIN = {quote: re.compile(rf"[^{quote}\\\n]*") for quote in "'\""}
_PLAIN_TRIPLE = {quote: re.compile(rf"[^{quote}\\]*") for quote in "'\""}


class PythonListScanner:
    """Follows the text of a list that arrives in pieces, to its end: brackets and strings, and that the list begins as
    one of calls does. `read_python_calls` judges the rest."""

    def __init__(self) -> None:
        self.is_complete = False
        self.is_malformed = False
        self._closers: list[str] = []
        self._state: Callable[[str, int], int] = self._bracket
        self._quote = ""
        self._num_quotes = 0
        """In a row, at the beginning or the end of a string."""
        self._is_triple = False

    def scan(self, text: str, at: int) -> int:
        """Read on from `at`. Returns where it stopped: at the end of the text, behind the list (`is_complete`), or at
        the first character that cannot be there (`is_malformed`)."""
        while at < len(text) and not self.is_complete and not self.is_malformed:
            at = self._state(text, at)
        return at

    def _bracket(self, text: str, at: int) -> int:
        self._state = self._first_name
        return self._open(text, at)

    def _first_name(self, text: str, at: int) -> int:
        at = skip_space(text, at)
        if at < len(text):
            self._state = self._in_first_name
            if not text[at].isidentifier():
                return self._refuse(at)
        return at

    def _in_first_name(self, text: str, at: int) -> int:
        char = text[at]
        if char == "(":
            self._state = self._code
            return self._open(text, at)
        return at + 1 if char in " ._" or char.isalnum() else self._refuse(at)

    def _code(self, text: str, at: int) -> int:
        at = match_end(_CODE, text, at)
        if at == len(text):
            return at
        char = text[at]
        if char in _CLOSERS:
            return self._open(text, at)
        if char in "'\"":
            self._quote, self._num_quotes = char, 1
            self._state = self._opening_quotes
            return at + 1
        if char != self._closers.pop():
            return self._refuse(at)
        self.is_complete = not self._closers
        return at + 1

    def _open(self, text: str, at: int) -> int:
        if len(self._closers) == MAX_DEPTH:
            return self._refuse(at)
        self._closers.append(_CLOSERS[text[at]])
        return at + 1

    def _opening_quotes(self, text: str, at: int) -> int:
        """One quote, or two that are an empty string, or three."""
        if text[at] == self._quote:
            self._num_quotes += 1
            if self._num_quotes < 3:
                return at + 1
            at += 1
        elif self._num_quotes == 2:
            self._state = self._code
            return at
        self._is_triple = self._num_quotes == 3
        self._num_quotes = 0
        self._state = self._string
        return at

    def _string(self, text: str, at: int) -> int:
        end = match_end((_PLAIN_TRIPLE if self._is_triple else _PLAIN)[self._quote], text, at)
        if end > at:
            self._num_quotes = 0
        if end == len(text):
            return end
        if text[end] == "\\":
            self._num_quotes = 0
            self._state = self._escape
        elif text[end] == "\n":
            return self._refuse(end)
        else:
            self._num_quotes += 1
            if self._num_quotes == (3 if self._is_triple else 1):
                self._state = self._code
        return end + 1

    def _escape(self, text: str, at: int) -> int:
        self._state = self._string
        return at + 1

    def _refuse(self, at: int) -> int:
        self.is_malformed = True
        return at


@dataclass(frozen=True, slots=True)
class PythonCall:
    """One call."""

    name: str
    arguments: str
    """JSON text."""


_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
      (?P<string>(?P<prefix>[rRuU]?)(?:
          '''(?P<single3>[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*)'''
        | \"\"\"(?P<double3>[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*)\"\"\"
        | '(?P<single>[^'\\\n]*(?:\\.[^'\\\n]*)*)'
        | "(?P<double>[^"\\\n]*(?:\\.[^"\\\n]*)*)"))
    | (?P<integer>[+-]?(?:0[xX][0-9a-fA-F]+|(?:0|[1-9][0-9]*(?:_[0-9]+)*)(?![0-9.eE])))
    | (?P<float>[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)
    | (?P<mark>[\[\](){}:,=])
    | (?P<end>\Z)
    )""",
    re.DOTALL | re.VERBOSE,
)
_NAMES = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
"""Models mix Python's and JSON's."""
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([\n\\'\"abfnrtv]))", re.DOTALL
)
_ESCAPED = {"\n": "", "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def read_python_calls(text: str) -> list[PythonCall]:
    """The calls of a complete list, which `PythonListScanner` has followed; none if it is anything else."""
    try:
        return _Reader(text).read()
    except ValueError:  # numbers that Python cannot hold or JSON does not have, too
        return []


class _Reader:
    """Reads one token after the other; raises ValueError where a token cannot be there."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._token = self._match(0)

    def read(self) -> list[PythonCall]:
        calls: list[PythonCall] = []
        self._take("[")
        while not self._is("]"):
            calls.append(self._call())
            if not self._is("]"):
                self._take(",")
        self._take("]")
        if self._token.lastgroup != "end":
            raise ValueError("more than a list")
        return calls

    def _call(self) -> PythonCall:
        name = self._take_name()
        arguments: dict[str, Any] = {}
        self._take("(")
        while not self._is(")"):
            key = self._take_name()
            if key in arguments or "." in key:
                raise ValueError(f"an argument is given twice, or has no name: {key}")
            self._take("=")
            arguments[key] = self._value()
            if not self._is(")"):
                self._take(",")
        self._take(")")
        return PythonCall(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))

    def _value(self) -> Any:
        token = self._token
        match token.lastgroup:
            case "string":
                return self._strings()
            case "integer":
                self._advance()
                return int(token["integer"], 0)
            case "float":
                self._advance()
                return float(token["float"])
            case "name" if token["name"] in _NAMES:
                self._advance()
                return _NAMES[token["name"]]
        if self._is("["):
            return self._items("[", "]")[0]
        if self._is("("):
            items, has_comma = self._items("(", ")")
            return items if has_comma or not items else items[0]
        return self._dict()

    def _items(self, opener: str, closer: str) -> tuple[list[Any], bool]:
        """The items between brackets, and whether there was a comma."""
        items: list[Any] = []
        has_comma = False
        self._take(opener)
        while not self._is(closer):
            items.append(self._value())
            if not self._is(closer):
                self._take(",")
                has_comma = True
        self._take(closer)
        return items, has_comma

    def _dict(self) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        self._take("{")
        while not self._is("}"):
            key = self._strings()
            self._take(":")
            entries[key] = self._value()
            if not self._is("}"):
                self._take(",")
        self._take("}")
        return entries

    def _strings(self) -> str:
        """One string, or several in a row, which are one."""
        texts: list[str] = []
        while self._token.lastgroup == "string":
            texts.append(_text_of(self._token))
            self._advance()
        if not texts:
            raise ValueError("no string")
        return "".join(texts)

    def _take_name(self) -> str:
        name = self._token["name"]
        if name is None:
            raise ValueError("no name")
        self._advance()
        return name

    def _is(self, mark: str) -> bool:
        return self._token["mark"] == mark

    def _take(self, mark: str) -> None:
        if not self._is(mark):
            raise ValueError(f"no {mark}")
        self._advance()

    def _advance(self) -> None:
        self._token = self._match(self._token.end())

    def _match(self, at: int) -> re.Match[str]:
        token = _TOKEN.match(self._text, at)
        if token is None:
            raise ValueError("no token")
        return token


def _text_of(token: re.Match[str]) -> str:
    """What a string says. Escapes that Python does not know stay as they are. JSON's pairs of surrogates are read."""
    body = next(text for name in ("single3", "double3", "single", "double") if (text := token[name]) is not None)
    if token["prefix"] not in ("r", "R"):
        body = _ESCAPE.sub(_unescaped, body)
    if has_lone_surrogate(body):
        body = body.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    return body


def _unescaped(escape: re.Match[str]) -> str:
    octal, *hexadecimals, char = escape.groups()
    if octal is not None:
        return chr(int(octal, 8))
    for digits in hexadecimals:
        if digits is not None:
            return chr(int(digits, 16))
    return _ESCAPED.get(char, char)
