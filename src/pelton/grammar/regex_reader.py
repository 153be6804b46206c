"""Regular expressions as users write them, read strictly.

What is kept: literals, escapes, classes, groups, alternatives, counted and uncounted repetition, and the anchors `^`
and `$` at the ends. Everything else, such as look-around, back-references, word boundaries and flags, is refused by
name. Positions in messages are those of characters from 0, where the thing begins that cannot be read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from pelton.error_text import shown
from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.characters import (
    ALL,
    Ranges,
    categories,
    class_escape,
    class_of,
    is_character,
    is_single,
    single,
    without,
)
from pelton.grammar.expressions import (
    MAX_NESTING,
    MAX_REPEAT,
    REPETITIONS,
    Characters,
    Choice,
    Expression,
    Repeat,
    Rule,
    Sequence,
    bounds_of,
    children,
    choice,
    sequence,
)

MAX_LENGTH = 50_000
"""Characters of an expression."""
MAX_EXPANDED = 20_000
"""Characters of the expression with its counted repetitions, where they hold others, written out."""

_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
_BOUNDS = re.compile(r"\{([0-9]+(?:,[0-9]*)?)\}")
_SHORT_ESCAPES = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
_REWRITE = "write the expression without it"
_GROUPS = {
    "i": "write both cases, such as [Aa]",
    "s": r"write (?:.|\s) for any character",
    "x": "leave it out, with the spaces and comments",
    "#": "leave it out",
}
"""What to do about a group, by what stands behind its `(?`."""


@dataclass(frozen=True, slots=True)
class _Anchor(Rule):
    """`^` or `$`, which stands among other expressions until it is known what is around it."""

    position: int


class _Reader:
    """Recursive descent over one expression; `field` names it in messages."""

    def __init__(self, text: str, field: str, *, search: bool, exact: bool) -> None:
        self._text, self._field, self._search, self._exact = text, field, search, exact
        self._dot = without(_LINE_ENDS if search else _LINE_ENDS[:1])
        self._position = 0
        self._depth = 0

    def read(self) -> Expression:
        expression = self._choice()
        if self._position < len(self._text):
            self._refuse_malformed("an unmatched )", self._position, r"leave it out, or write \) for the character")
        return choice(*map(self._without_anchors, _alternatives(expression)))

    def _refuse(self, what: str, position: int, remedy: str = _REWRITE) -> NoReturn:
        raise UnsupportedGrammarError(
            f"{self._field}: {what} at character {position} of {shown(self._text)} is not supported; {remedy}"
        )

    def _refuse_malformed(self, what: str, position: int, remedy: str) -> NoReturn:
        raise UnsupportedGrammarError(
            f"{self._field}: {shown(self._text)} has {what} at character {position}; {remedy}"
        )

    def _refuse_open(self, closing: str, opening: str, position: int) -> NoReturn:
        self._refuse_malformed(f"no closing {closing} for the {opening}", position, "close it")

    # Alternatives

    def _without_anchors(self, alternative: Expression) -> Expression:
        """With what may be around it."""
        parts = list(alternative.parts) if isinstance(alternative, Sequence) else [alternative]
        start = end = False
        while parts and _is_anchor(parts[0], "^"):
            start = True
            parts.pop(0)
        while parts and _is_anchor(parts[-1], "$"):
            end = True
            parts.pop()
        anchor = _first_anchor(Sequence(tuple(parts)))
        if anchor is not None:
            self._refuse(
                "an anchor that is not at an end of the expression or of one of its alternatives", anchor.position
            )
        if self._search:
            anything = Repeat(Characters(ALL), 0, None)
            parts = [*([] if start else [anything]), *parts, *([] if end else [anything])]
        return sequence(*parts)

    def _choice(self) -> Expression:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return choice(*options)

    def _sequence(self) -> Expression:
        parts: list[Expression] = []
        while (symbol := self._peek()) and symbol not in "|)":
            parts.append(self._repeated(self._atom()))
        return sequence(*parts)

    # Characters of the text

    def _peek(self, length: int = 1) -> str:
        return self._text[self._position : self._position + length]

    def _take(self, expected: str) -> bool:
        if not self._text.startswith(expected, self._position):
            return False
        self._position += len(expected)
        return True

    def _take_until(self, closing: str, opening: str) -> str:
        """What follows an opening bracket, which has been taken, up to the closing one."""
        end = self._text.find(closing, self._position)
        if end < 0:
            self._refuse_open(closing, opening, self._position - 1)
        inner = self._text[self._position : end]
        self._position = end + 1
        return inner

    # Parts

    def _atom(self) -> Expression:
        start, symbol = self._position, self._peek()
        self._position += 1
        match symbol:
            case "(":
                return self._group(start)
            case "[":
                return Characters(self._class(start))
            case ".":
                return Characters(self._dot)
            case "^" | "$":
                return _Anchor(symbol, start)
            case "\\":
                return self._escape(start)
            case "*" | "+" | "?":
                self._refuse_malformed(
                    f"a {symbol} that repeats nothing",
                    start,
                    f"put what it repeats before it, or write \\{symbol} for the character",
                )
            case "{" | "}" | "]":
                self._refuse_malformed(f"a bare {symbol}", start, f"write \\{symbol} for the character")
        return Characters(single(ord(symbol)))

    def _group(self, start: int) -> Expression:
        if self._take("?"):
            self._begin_group(start)
        self._depth += 1
        if self._depth > MAX_NESTING:
            self._refuse(f"a group within more than {MAX_NESTING} others", start, "write fewer groups")
        inner = self._choice()
        if not self._take(")"):
            self._refuse_open(")", "(", start)
        self._depth -= 1
        return inner

    def _begin_group(self, start: int) -> None:
        """What follows `(?`."""
        if self._position == len(self._text):
            self._refuse_open(")", "(", start)
        if self._peek(2) in ("<=", "<!") or self._peek() in "=!":
            self._refuse("look-around", start)
        if self._peek(2) == "P=":
            self._refuse("a back-reference", start)
        if self._take("P<") or self._take("<"):
            self._take_until(">", "<")
        elif not self._take(":"):
            self._refuse(f"a group that begins with (?{self._peek()}", start, _GROUPS.get(self._peek(), _REWRITE))

    def _repeated(self, part: Expression) -> Expression:
        start = self._position
        bounds = self._bounds()
        if bounds is None:
            return part
        if isinstance(part, _Anchor):
            self._refuse("a repeated anchor", part.position, "leave the repetition out")
        if self._peek() == "+":
            self._refuse("a possessive repetition", start)
        self._take("?")  # lazy: the same strings match
        if self._peek() in (*REPETITIONS, "{"):
            self._refuse("a repetition of a repetition", self._position, "put what it repeats into a group, (?:...)")
        return Repeat(part, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        start, symbol = self._position, self._peek()
        if symbol in REPETITIONS:
            self._position += 1
            return REPETITIONS[symbol]
        if symbol != "{":
            return None
        found = _BOUNDS.match(self._text, start)
        if found is None:
            self._refuse_malformed(
                "a repetition that is not {n}, {n,} or {n,m}", start, r"write one of these, or \{ for the character"
            )
        self._position = found.end()
        low, high = bounds_of(found[1])
        if max(low, high or 0) > MAX_REPEAT:
            self._refuse(f"a repetition of more than {MAX_REPEAT} times", start, "write a smaller bound, or none, {n,}")
        if high is not None and high < low:
            self._refuse_malformed(f"a repetition from {low} to {high}", start, "write the smaller number first")
        return low, high

    # Escapes

    def _escape(self, start: int) -> Expression:
        letter = self._peek()
        if letter in tuple("AZz"):
            anchor = "^" if letter == "A" else "$"
            remedy = f"write {anchor}" if self._search else "leave it out, the whole output is matched anyway"
            self._refuse(f"the assertion \\{letter}", start, remedy)
        if letter in tuple("bBGK"):
            self._refuse(f"the assertion \\{letter}", start)
        if letter in tuple("123456789k"):
            self._refuse("a back-reference", start)
        return Characters(self._escaped(start))

    def _escaped(self, start: int, *, outer: bool = False) -> Ranges:
        """After the backslash at `start`: what is matched in every dialect or, for `outer`, in any of them."""
        letter = self._peek()
        if not letter:
            self._refuse_malformed("a \\ with nothing behind it", start, r"write \\ for the character")
        self._position += 1
        if letter in "pP":
            return self._property(start, negated=letter == "P")
        if letter in "dDwWsS":
            return class_escape(letter, exact=self._exact, outer=outer)
        if letter in _SHORT_ESCAPES:
            return single(_SHORT_ESCAPES[letter])
        if letter == "0" and not self._peek().isdigit():
            return single(0)
        if letter == "c" and self._peek().isascii() and self._peek().isalpha():
            self._position += 1
            return single(ord(self._text[self._position - 1]) % 32)
        if letter in "xuU":
            return single(self._character_code(start, {"x": 2, "u": 4, "U": 8}[letter]))
        if not letter.isascii() or letter.isalnum() or letter == "_":
            self._refuse(f"the escape \\{letter}", start, "write the characters that it stands for")
        return single(ord(letter))

    def _character_code(self, start: int, length: int) -> int:
        code = self._hexadecimal(start, length)
        if 0xD800 <= code <= 0xDBFF and self._take("\\u"):
            low = self._hexadecimal(start, 4)
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) if 0xDC00 <= low <= 0xDFFF else code
        if not is_character(code):
            self._refuse_malformed(
                "an escape that is no character", start, "write one up to 10FFFF and not from D800 to DFFF"
            )
        return code

    def _hexadecimal(self, start: int, length: int) -> int:
        """Of so many digits, or of up to eight in braces."""
        if self._take("{"):
            digits = self._take_until("}", "{")
            is_whole = 0 < len(digits) <= 8
        else:
            digits = self._peek(length)
            self._position += len(digits)
            is_whole = len(digits) == length
        if not is_whole or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            self._refuse_malformed(
                "an incomplete escape", start, r"write \xHH, \uHHHH, \UHHHHHHHH or \u{H...}, in hexadecimal"
            )
        return int(digits, 16)

    def _property(self, start: int, *, negated: bool) -> Ranges:
        name = self._peek()
        self._position += len(name)
        if name == "{":
            name = self._take_until("}", "{")
        ranges = categories().get(name.removeprefix("^"))
        if ranges is None:
            self._refuse(
                f"the property {shown(name)}",
                start,
                r"write its ranges, or a general category of one or two letters, such as \p{L}",
            )
        return class_of(ranges, negated=negated ^ name.startswith("^"))

    # Classes

    def _class(self, start: int) -> Ranges:
        negated = self._take("^")
        if self._peek() == "]":
            self._refuse("a ] at the beginning of a class", self._position, r"write \] for the character")
        entries: list[Ranges] = []
        while not self._take("]"):
            pair = self._peek(2)
            if pair in ("[:", "[.", "[="):
                self._refuse("a class with a POSIX name", self._position, "write its characters, such as A-Za-z")
            if pair in ("&&", "--", "~~", "||"):
                self._refuse(f"the operator {pair} of a class", self._position, f"write \\{pair[0]} for the character")
            entries.append(self._class_entry(start, outer=negated))
        return class_of(*entries, negated=negated)

    def _class_entry(self, start: int, *, outer: bool) -> Ranges:
        position = self._position
        first = self._class_character(start, outer)
        if self._peek() != "-" or self._peek(2) == "-]":
            return first
        self._position += 1
        last = self._class_character(start, outer)
        if not is_single(first) or not is_single(last):
            self._refuse_malformed(
                "a range whose ends are no single characters", position, r"write \- for the character -"
            )
        if last[0][0] < first[0][0]:
            self._refuse_malformed("a range whose ends are in the wrong order", position, "swap them")
        return ((first[0][0], last[0][0]),)

    def _class_character(self, start: int, outer: bool) -> Ranges:
        """`start`: of the class."""
        position, symbol = self._position, self._peek()
        if not symbol:
            self._refuse_open("]", "[", start)
        self._position += 1
        if symbol != "\\":
            return single(ord(symbol))
        return single(8) if self._take("b") else self._escaped(position, outer=outer)


def read_regex(text: str, field: str, *, search: bool = False, exact: bool = False) -> Expression:
    """The language of an expression: of the strings that it matches whole, or, for `search`, of those in which it
    matches somewhere. `exact`: as ECMA-262 has it, also where other dialects accept less. The result has neither rules
    nor texts.

    Raises UnsupportedGrammarError, with `field` first.
    """
    if len(text) > MAX_LENGTH:
        raise UnsupportedGrammarError(f"{field}: it has {len(text)} characters, and {MAX_LENGTH} is the most")
    found = _Reader(text, field, search=search, exact=exact).read()
    size = _expanded_size(found)
    if size > MAX_EXPANDED:
        raise UnsupportedGrammarError(
            f"{field}: {shown(text)} repeats repetitions up to {size} characters, and {MAX_EXPANDED} is the most; "
            "write smaller bounds"
        )
    return found


def _alternatives(expression: Expression) -> Iterator[Expression]:
    if isinstance(expression, Choice):
        for option in expression.options:
            yield from _alternatives(option)
    else:
        yield expression


def _is_anchor(expression: Expression, symbol: str) -> bool:
    return isinstance(expression, _Anchor) and expression.name == symbol


def _first_anchor(expression: Expression) -> _Anchor | None:
    if isinstance(expression, _Anchor):
        return expression
    return next(filter(None, map(_first_anchor, children(expression))), None)


def _expanded_size(expression: Expression, *, within: bool = False) -> int:
    """Characters with the counted repetitions written out, but for those of single characters that are not `within`
    others."""
    if not isinstance(expression, Repeat):
        return max(1, sum(_expanded_size(child, within=within) for child in children(expression)))
    times = max(1, expression.low, expression.high or 0)
    if isinstance(expression.part, Characters) and not within:
        return 1
    return times * _expanded_size(expression.part, within=within or times > 1)
