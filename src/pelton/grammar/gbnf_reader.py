"""Grammars that users write in GBNF (`root ::= ...`), read strictly."""

import re
from typing import NoReturn

from pelton.error_text import shown
from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.characters import ALL, Ranges, class_of, is_character
from pelton.grammar.expressions import (
    MAX_NESTING,
    MAX_REPEAT,
    REPETITIONS,
    Characters,
    Expression,
    Repeat,
    Rule,
    Text,
    bounds_of,
    choice,
    sequence,
)

_TOKEN = re.compile(
    r"""
    (?P<space> (?: [ \t\r\n] | \#[^\n]* )+ )
    | (?P<text> "(?:[^"\\\n]|\\.)*" )
    | (?P<class> \[\^?(?:[^\]\\\n]|\\.)*\] )
    | (?P<rule> [A-Za-z_][A-Za-z0-9_.-]* (?= \s*::= ) )
    | (?P<name> [A-Za-z_][A-Za-z0-9_.-]* )
    | (?P<bounds> \{[ \t]*[0-9]+[ \t]*(?:,[ \t]*[0-9]*[ \t]*)?\} )
    | (?P<symbol> ::= | [|()*+?.] )
    """,
    re.VERBOSE,
)
_CHARACTER = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)|[^\\]", re.DOTALL)
_SHORT_ESCAPES = {"n": 10, "r": 13, "t": 9}


def gbnf_rules(text: str, field: str = "grammar") -> dict[str, Expression]:
    """Raises UnsupportedGrammarError; `field` names the parameter in the message."""
    if "::=" not in text:
        raise UnsupportedGrammarError(
            f"{field}: it is no GBNF (root ::= ...); Lark's notation needs backend llguidance"
        )
    return _Reader(text, field).read()


class _Reader:
    def __init__(self, text: str, field: str) -> None:
        self._text = text
        self._field = field
        self._tokens: list[tuple[str, str, int]] = []
        """Kind, text and where it begins; the last has the kind `end`."""
        self._index = 0
        self._depth = 0

    def read(self) -> dict[str, Expression]:
        self._split()
        rules: dict[str, Expression] = {}
        used: dict[str, int] = {}
        self._used = used
        while self._kind != "end":
            if self._kind != "rule":
                self._refuse("a rule (name ::= ...) must be")
            name = self._take()
            if name in rules:
                self._index -= 1
                self._refuse(f"there is a second rule {shown(name)}")
            self._take()
            rules[name] = self._choice()
        if "root" not in rules:
            raise UnsupportedGrammarError(f"{self._field}: it has no rule root; add root ::= ...")
        for name, position in used.items():
            if name not in rules:
                raise UnsupportedGrammarError(
                    f"{self._field}: there is no rule {shown(name)}, which line {self._line(position)} uses; add it"
                )
        return rules

    def _split(self) -> None:
        position = 0
        while position < len(self._text):
            found = _TOKEN.match(self._text, position)
            if found is None:
                self._tokens.append(("", self._text[position], position))
                self._index = len(self._tokens) - 1
                self._refuse(f"{shown(self._text[position])} is not known")
            if found.lastgroup != "space":
                self._tokens.append((str(found.lastgroup), found.group(), position))
            position = found.end()
        self._tokens.append(("end", "", position))

    @property
    def _kind(self) -> str:
        return self._tokens[self._index][0]

    @property
    def _next(self) -> str:
        return self._tokens[self._index][1]

    def _take(self) -> str:
        self._index += 1
        return self._tokens[self._index - 1][1]

    def _line(self, position: int) -> int:
        return self._text.count("\n", 0, position) + 1

    def _refuse(self, what: str) -> NoReturn:
        position = self._tokens[self._index][2]
        at_end = " (the end)" if self._kind == "end" else f" ({shown(self._text[position : position + 20])})"
        raise UnsupportedGrammarError(f"{self._field}: {what} in line {self._line(position)}{at_end}; correct it")

    def _choice(self) -> Expression:
        options = [self._sequence()]
        while self._next == "|":
            self._take()
            options.append(self._sequence())
        return choice(*options)

    def _sequence(self) -> Expression:
        """May be empty, but not where nothing stands between a rule's name and the next."""
        parts: list[Expression] = []
        while self._kind in ("text", "class", "name") or self._next in ("(", "."):
            parts.append(self._repeated(self._part()))
        if not parts and self._next not in ("|", ")") and self._tokens[self._index - 1][1] != "|":
            self._refuse("something must follow ::=")
        return sequence(*parts)

    def _part(self) -> Expression:
        match self._kind:
            case "text":
                codes = self._codes(self._next[1:-1])
                self._take()
                return Text("".join(map(chr, codes)))
            case "class":
                ranges = self._class(self._next[1:-1])
                self._take()
                return Characters(ranges)
            case "name":
                self._used.setdefault(self._next, self._tokens[self._index][2])
                return Rule(self._take())
        if self._take() == ".":
            return Characters(ALL)
        return self._group()

    def _group(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_NESTING:
            self._refuse(f"brackets are nested more than {MAX_NESTING} levels deep")
        inner = self._choice()
        if self._next != ")":
            self._refuse("a ) is missing")
        self._take()
        self._depth -= 1
        return inner

    def _repeated(self, part: Expression) -> Expression:
        """Only one repetition may follow: what a second one means is not the same everywhere."""
        bounds = REPETITIONS.get(self._next)
        if self._kind == "bounds":
            bounds = self._bounds(self._next[1:-1])
        if bounds is None:
            return part
        self._take()
        if self._next in REPETITIONS or self._kind == "bounds":
            self._refuse("a repetition is repeated without brackets")
        return Repeat(part, *bounds)

    def _bounds(self, text: str) -> tuple[int, int | None]:
        low, high = bounds_of(text)
        if max(low, high or 0) > MAX_REPEAT:
            self._refuse(f"a repetition is of more than {MAX_REPEAT} times")
        if high is not None and high < low:
            self._refuse(f"a repetition is from {low} to {high}")
        return low, high

    def _codes(self, text: str) -> list[int]:
        return [self._code(character) for character in _CHARACTER.findall(text)]

    def _code(self, character: str) -> int:
        if len(character) == 1:
            return ord(character)
        letter = character[1]
        if len(character) > 2:
            code = int(character[2:], 16)
        elif letter in _SHORT_ESCAPES:
            code = _SHORT_ESCAPES[letter]
        elif letter.isascii() and letter.isalnum():
            self._refuse(f"the escape {shown(character)} is not known")
        else:
            code = ord(letter)
        if not is_character(code):
            self._refuse(f"the escape {character} is no character")
        return code

    def _class(self, text: str) -> Ranges:
        is_negated = text.startswith("^")
        found = _CHARACTER.findall(text[1:] if is_negated else text)
        ranges = []
        index = 0
        while index < len(found):
            low = high = self._code(found[index])
            if found[index + 1 : index + 2] == ["-"] and index + 2 < len(found):
                high = self._code(found[index + 2])
                index += 2
            if high < low:
                self._refuse("a range of a class ends before it begins")
            ranges.append((low, high))
            index += 1
        return class_of(tuple(ranges), negated=is_negated)
