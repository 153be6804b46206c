"""Regular expressions as users write them, read strictly and written anew for llguidance.

What is kept: literals, escapes, classes, groups, alternatives, counted and uncounted repetition, and the anchors `^`
and `$` at the ends. Everything else, such as look-around, back-references, word boundaries and flags, is refused by
name. Where the dialects of ECMA-262 and Python disagree on a class, only what both accept is generated: `\\d` is 0-9,
`\\w` is A-Z, a-z, 0-9 and _, and `\\D`, `\\W` and `\\S` leave out what is a digit, letter or space in either.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import NoReturn

from pelton.error_text import shown
from pelton.grammar.backend import UnsupportedGrammarError

MAX_LENGTH = 50_000
"""Characters of an expression."""
MAX_NESTING = 50
"""Groups within groups."""
MAX_EXPANDED = 20_000
"""Characters of the expression with its counted repetitions, where they hold others, written out."""
MAX_REPEAT = 100_000

Range = tuple[int, int]
Ranges = tuple[Range, ...]

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_SHORT_ESCAPES = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
# Spaces of ECMA-262 that are spaces in Python's dialect too.
_SPACES: Ranges = (
    (9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000),
)  # fmt: skip
_DIGITS: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))


def union(*sets: Ranges) -> Ranges:
    """Sorted, and without overlaps."""
    merged: list[Range] = []
    for low, high in sorted(entry for ranges in sets for entry in ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def without(*sets: Ranges) -> Ranges:
    """All characters that are in none of the sets; surrogates are no characters."""
    taken = union(*sets, (_SURROGATES,))
    edges = ((-1, -1), *taken, (_LAST + 1, _LAST + 1))
    return tuple((left[1] + 1, right[0] - 1) for left, right in pairwise(edges) if left[1] + 1 <= right[0] - 1)


ALL: Ranges = without()
JSON_CHARACTERS: Ranges = without(((0, 7), (11, 11), (14, 31), (127, 127)))
"""What a string of JSON may hold here: control characters are left out, except those with an escape of one letter."""


@cache
def _categories() -> dict[str, Ranges]:
    """Unicode's general categories, of one and of two letters."""
    runs: dict[str, list[Range]] = {}
    start, current = 0, unicodedata.category("\0")
    for code in range(1, _LAST + 2):
        category = unicodedata.category(chr(code)) if code <= _LAST else ""
        if category != current:
            runs.setdefault(current, []).append((start, code - 1))
            start, current = code, category
    exact = {name: tuple(ranges) for name, ranges in runs.items()}
    broad = {letter: union(*(exact[name] for name in exact if name[0] == letter)) for letter in "LMNPSZC"}
    return {**exact, **broad}


@cache
def _in_python(escape: str) -> Ranges:
    """What an escape for a class matches in Python."""
    text = "".join(map(chr, range(_LAST + 1)))
    return tuple((found.start(), found.end() - 1) for found in re.finditer(f"{escape}+", text))


_ECMA: dict[str, Ranges] = {"d": _DIGITS, "w": _WORD, "s": union(_SPACES, ((0xFEFF, 0xFEFF),))}


def _class_escape(letter: str, exact: bool, outer: bool) -> Ranges:
    """What `\\d` and the like match in every dialect or, for `outer`, in any of them; `exact`: in ECMA-262."""
    kind, negated = letter.lower(), letter.isupper()
    ranges = _ECMA[kind]
    if not exact and outer != negated:
        ranges = union(ranges, _in_python(f"\\{kind}"))
    elif not exact and kind == "s":
        ranges = _SPACES
    return without(ranges) if negated else ranges


@dataclass(frozen=True, slots=True)
class CharSet:
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Anchor:
    symbol: str


@dataclass(frozen=True, slots=True)
class Sequence_:  # noqa: N801  beside the abstract type
    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: "Node"
    low: int
    high: int | None


Node = CharSet | Anchor | Sequence_ | Choice | Repeat

EMPTY = Sequence_(())


class _Reader:
    """Recursive descent over one expression; `field` names it in messages."""

    def __init__(self, text: str, field: str, dot: Ranges, exact: bool) -> None:
        self.text, self.field, self.dot, self.exact = text, field, dot, exact
        self.position = 0
        self.depth = 0

    def read(self) -> Node:
        node = self._choice()
        if self.position < len(self.text):
            self.refuse("an unmatched )")
        return node

    def refuse(self, what: str) -> NoReturn:
        raise UnsupportedGrammarError(
            f"{self.field}: {what} at character {self.position} of {shown(self.text)} is not supported; leave it out"
        )

    def _peek(self, length: int = 1) -> str:
        return self.text[self.position : self.position + length]

    def _take(self, expected: str) -> bool:
        if not self.text.startswith(expected, self.position):
            return False
        self.position += len(expected)
        return True

    def _next(self, what: str) -> str:
        if self.position >= len(self.text):
            self.refuse(f"the end of the text within {what}")
        self.position += 1
        return self.text[self.position - 1]

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while (symbol := self._peek()) and symbol not in "|)":
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Sequence_(tuple(parts))

    def _atom(self) -> Node:
        symbol = self._next("an expression")
        match symbol:
            case "(":
                return self._group()
            case "[":
                return CharSet(self._class())
            case ".":
                return CharSet(self.dot)
            case "^" | "$":
                return Anchor(symbol)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                self.position -= 1
                self.refuse(f"a {symbol} that repeats nothing")
        if symbol in "{}]":
            self.position -= 1
            self.refuse(f"a bare {symbol} (write \\{symbol})")
        return CharSet(((ord(symbol), ord(symbol)),))

    def _group(self) -> Node:
        if self._take("?"):
            if self._peek(2) in ("<=", "<!") or self._peek() in ("=", "!"):
                self.refuse("look-around")
            if self._take("P<") or self._take("<"):
                while self._next("the name of a group") != ">":
                    pass
            elif not self._take(":"):
                self.refuse(f"a group that begins with (?{self._peek()}")
        self.depth += 1
        if self.depth > MAX_NESTING:
            self.refuse(f"a group within more than {MAX_NESTING} others")
        node = self._choice()
        if not self._take(")"):
            self.refuse("a missing )")
        self.depth -= 1
        return node

    def _repeated(self, node: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        low, high = bounds
        if isinstance(node, Anchor):
            self.refuse("a repeated anchor")
        if self._peek() == "+":
            self.refuse("a possessive repetition")
        self._take("?")  # lazy: the same strings match
        if self._peek() in ("*", "+", "?") and self._peek():
            self.refuse("a repetition of a repetition (write a group)")
        return Repeat(node, low, high)

    def _bounds(self) -> tuple[int, int | None] | None:
        for symbol, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(symbol):
                return bounds
        if not self._take("{"):
            return None
        low = self._number()
        high: int | None = low
        if self._take(","):
            high = None if self._peek() == "}" else self._number()
        if not self._take("}"):
            self.refuse("a repetition that is not {n}, {n,} or {n,m}")
        if high is not None and high < low:
            self.refuse(f"a repetition from {low} to {high}")
        return low, high

    def _number(self) -> int:
        start = self.position
        while self._peek().isascii() and self._peek().isdigit():
            self.position += 1
        digits = self.text[start : self.position]
        if not digits:
            self.refuse("a repetition that is not {n}, {n,} or {n,m}")
        if len(digits) > 9 or int(digits) > MAX_REPEAT:
            self.refuse(f"a repetition of more than {MAX_REPEAT} times")
        return int(digits)

    def _escape(self) -> Node:
        letter = self._peek()
        if letter and letter in "bBAZzGK":
            self.refuse(f"the assertion \\{letter}")
        if letter and (letter in "123456789k"):
            self.refuse("a back-reference")
        return CharSet(self._escaped())

    def _escaped(self, *, outer: bool = False) -> Ranges:
        """After a backslash: what is matched in every dialect or, for `outer`, in any of them."""
        letter = self._next("an escape")
        if letter in "pP":
            return self._property(negated=letter == "P")
        if letter in "dDwWsS":
            return _class_escape(letter, self.exact, outer)
        if letter in _SHORT_ESCAPES:
            code = _SHORT_ESCAPES[letter]
        elif letter == "0" and not self._peek().isdigit():
            code = 0
        elif letter == "c" and self._peek().isascii() and self._peek().isalpha():
            code = ord(self._next("an escape")) % 32
        elif letter in "xuU":
            code = self._character_code({"x": 2, "u": 4, "U": 8}[letter])
        elif letter.isascii() and not letter.isalnum() and letter != "_":
            code = ord(letter)
        else:
            self.position -= 1
            self.refuse(f"the escape \\{letter}")
        return ((code, code),)

    def _character_code(self, length: int) -> int:
        code = self._hexadecimal(length)
        if 0xD800 <= code <= 0xDBFF and self._take("\\u"):
            low = self._hexadecimal(4)
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) if 0xDC00 <= low <= 0xDFFF else code
        if code > _LAST or _SURROGATES[0] <= code <= _SURROGATES[1]:
            self.refuse("an escape that is no character")
        return code

    def _hexadecimal(self, length: int) -> int:
        """Of so many digits, or of any number of them in braces."""
        if self._take("{"):
            end = self.text.find("}", self.position)
            digits = self.text[self.position : max(end, self.position)]
            self.position = max(end + 1, self.position)
            is_whole = 0 < len(digits) <= 8
        else:
            digits = self._peek(length)
            self.position += len(digits)
            is_whole = len(digits) == length
        if not is_whole or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            self.refuse("an incomplete escape")
        return int(digits, 16)

    def _property(self, negated: bool) -> Ranges:
        name = self._next("an escape")
        if name == "{":
            end = self.text.find("}", self.position)
            name = self.text[self.position : max(end, self.position)]
            self.position = max(end + 1, self.position)
        negated ^= name.startswith("^")
        ranges = _categories().get(name.removeprefix("^"))
        if ranges is None:
            self.refuse(f"the property {shown(name)} (general categories of one or two letters are known)")
        return without(ranges) if negated else ranges

    def _class(self) -> Ranges:
        negated = self._take("^")
        if self._peek() == "]":
            self.refuse("a ] at the beginning of a class (write \\])")
        entries: list[Ranges] = []
        while not self._take("]"):
            if self._peek(2) in ("[:", "[.", "[="):
                self.refuse("a class with a POSIX name")
            if self._peek(2) in ("&&", "--", "~~", "||"):
                self.refuse(f"the operator {self._peek(2)} of a class (write its characters with \\)")
            entries.append(self._class_entry(outer=negated))
        return without(*entries) if negated else without(without(*entries))

    def _class_entry(self, *, outer: bool) -> Ranges:
        first = self._class_character(outer)
        if self._peek() != "-" or self._peek(2) == "-]":
            return first
        self.position += 1
        last = self._class_character(outer)
        if not _is_single(first) or not _is_single(last) or last[0][0] < first[0][0]:
            self.refuse("a range whose ends are no characters in order")
        return ((first[0][0], last[0][0]),)

    def _class_character(self, outer: bool) -> Ranges:
        symbol = self._next("a class")
        if symbol != "\\":
            return ((ord(symbol), ord(symbol)),)
        if self._take("b"):
            return ((8, 8),)
        return self._escaped(outer=outer)


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))


def read_regex(text: str, field: str, *, search: bool = False, exact: bool = False) -> Node:
    """The language of an expression, without anchors: of the strings that it matches whole, or, for `search`, of those
    in which it matches somewhere. `exact`: as ECMA-262 has it, also where other dialects accept less.

    Raises UnsupportedGrammarError, with `field` first.
    """
    if len(text) > MAX_LENGTH:
        raise UnsupportedGrammarError(f"{field}: it has {len(text)} characters, and {MAX_LENGTH} is the most")
    reader = _Reader(text, field, without(_LINE_ENDS if search else _LINE_ENDS[:1]), exact)
    node = reader.read()
    options = [_anchored(option, reader, search) for option in _alternatives(node)]
    found = options[0] if len(options) == 1 else Choice(tuple(options))
    size = _expanded_size(found)
    if size > MAX_EXPANDED:
        raise UnsupportedGrammarError(
            f"{field}: {shown(text)} repeats repetitions up to {size} characters, and {MAX_EXPANDED} is the most; "
            "write smaller bounds"
        )
    return found


def _alternatives(node: Node) -> Iterator[Node]:
    if isinstance(node, Choice):
        for option in node.options:
            yield from _alternatives(option)
    else:
        yield node


def _anchored(node: Node, reader: _Reader, search: bool) -> Node:
    """One alternative, without its anchors and with what may be around it."""
    parts = list(node.parts) if isinstance(node, Sequence_) else [node]
    start = end = False
    while parts and parts[0] == Anchor("^"):
        start = True
        parts.pop(0)
    while parts and parts[-1] == Anchor("$"):
        end = True
        parts.pop()
    if any(_has_anchor(part) for part in parts):
        reader.refuse("an anchor that is not at an end of the expression or of one of its alternatives, up to the end")
    if search:
        anything = Repeat(CharSet(ALL), 0, None)
        parts = [*([] if start else [anything]), *parts, *([] if end else [anything])]
    return Sequence_(tuple(parts))


def _children(node: Node) -> Sequence[Node]:
    match node:
        case Sequence_(parts):
            return parts
        case Choice(options):
            return options
        case Repeat(part):
            return (part,)
    return ()


def _has_anchor(node: Node) -> bool:
    return isinstance(node, Anchor) or any(map(_has_anchor, _children(node)))


def _expanded_size(node: Node, *, within: bool = False) -> int:
    """Characters with the counted repetitions written out, but for those of single characters that are not `within`
    others."""
    if not isinstance(node, Repeat):
        return max(1, sum(_expanded_size(child, within=within) for child in _children(node)))
    times = max(1, node.low, node.high or 0)
    if isinstance(node.part, CharSet) and not within:
        return 1
    return times * _expanded_size(node.part, within=within or times > 1)


def write_regex(node: Node, allowed: Ranges = ALL) -> str | None:
    """For llguidance, which takes it as matching whole strings. Characters that are not allowed are left out of the
    language; None if nothing is left of it."""
    match node:
        case CharSet(ranges):
            return _written_class(ranges, allowed)
        case Sequence_(parts):
            pieces = [write_regex(part, allowed) for part in parts]
            return None if None in pieces else "".join(piece or "" for piece in pieces)
        case Choice(options):
            found = [piece for option in options if (piece := write_regex(option, allowed)) is not None]
            return f"(?:{'|'.join(found)})" if found else None
        case Repeat(part, low, high):
            piece = write_regex(part, allowed)
            if piece is None:
                return "" if low == 0 else None
            return f"(?:{piece})" + _written_bounds(low, high)
    raise AssertionError(node)


def _written_bounds(low: int, high: int | None) -> str:
    match low, high:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
    return f"{{{low},{'' if high is None else high}}}"


def intersection(left: Ranges, right: Ranges) -> Ranges:
    return without(without(left), without(right))


@lru_cache(maxsize=1024)
def _written_class(ranges: Ranges, allowed: Ranges) -> str | None:
    kept = ranges if allowed is ALL else intersection(ranges, allowed)
    if not kept:
        return None
    if kept == ALL:
        return "(?s:.)"
    if _is_single(kept):
        return _written_character(kept[0][0])
    return "[" + "".join(_written_range(low, high) for low, high in kept) + "]"


def _written_range(low: int, high: int) -> str:
    return _written_character(low) if low == high else f"{_written_character(low)}-{_written_character(high)}"


def _written_character(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"


def characters_of(node: Node) -> Ranges:
    """All characters that occur in strings of the language."""
    if isinstance(node, CharSet):
        return node.ranges
    return union(*map(characters_of, _children(node)))


def written_literal(text: str) -> str:
    """An expression for just this text."""
    return "".join(map(_written_character, map(ord, text)))
