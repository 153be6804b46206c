"""Expressions over characters: regular ones, and, with rules that refer to each other, context-free grammars."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.characters import Ranges, single, union

MAX_NESTING = 50
"""Brackets within brackets, where expressions are read."""
MAX_REPEAT = 100_000
"""Bounds of repetitions, where expressions are read."""
REPETITIONS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
"""What one symbol means."""
_MAX_PASSES = 200


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of these; surrogates must not be among them."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Rule:
    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Without options: what nothing matches."""

    options: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: "Expression"
    low: int
    high: int | None


Expression = Text | Characters | Rule | Sequence | Choice | Repeat

EMPTY = Sequence(())
NOTHING = Choice(())


def sequence(*parts: Expression) -> Expression:
    kept = tuple(part for part in parts if part != EMPTY)
    return kept[0] if len(kept) == 1 else Sequence(kept)


def choice(*options: Expression) -> Expression:
    return options[0] if len(options) == 1 else Choice(options)


def optional(part: Expression) -> Expression:
    return Repeat(part, 0, 1)


def children(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case Sequence(parts):
            return parts
        case Choice(options):
            return options
        case Repeat(part):
            return (part,)
    return ()


def encoded(expression: Expression, encode: Callable[[Ranges], Expression]) -> Expression:
    """A regular expression over characters, with another one in place of each set of them."""
    match expression:
        case Characters(ranges):
            return encode(ranges)
        case Sequence(parts):
            return sequence(*(encoded(part, encode) for part in parts))
        case Choice(options):
            return choice(*(encoded(option, encode) for option in options))
        case Repeat(part, low, high):
            return Repeat(encoded(part, encode), low, high)
    raise AssertionError(expression)


def characters_of(expression: Expression) -> Ranges:
    """All characters that the expression names, without those of rules."""
    match expression:
        case Text(text):
            return union(*(single(ord(char)) for char in text))
        case Characters(ranges):
            return ranges
    return union(*map(characters_of, children(expression)))


def lengths_of(expression: Expression) -> tuple[int, int | None]:
    """Characters of the shortest and the longest string of a regular expression; None if there is no longest."""
    match expression:
        case Text(text):
            return len(text), len(text)
        case Characters():
            return 1, 1
        case Sequence(parts):
            lengths = [lengths_of(part) for part in parts]
            longest = [high for _, high in lengths]
            return sum(low for low, _ in lengths), None if None in longest else sum(filter(None, longest))
        case Choice(options):
            lengths = [lengths_of(option) for option in options]
            longest = [high for _, high in lengths]
            return min(low for low, _ in lengths), None if None in longest else max(filter(None, longest), default=0)
        case Repeat(part, low, high):
            shortest, most = lengths_of(part)
            return low * shortest, 0 if most == 0 else None if high is None or most is None else high * most
    raise AssertionError(expression)


def bounds_of(text: str) -> tuple[int, int | None]:
    """Of a repetition that is written as `n`, `n,` or `n,m`; a number of many digits is just one above MAX_REPEAT."""
    first, comma, second = (part.strip() for part in text.partition(","))
    low, high = (int(digits or 0) if len(digits) < 10 else MAX_REPEAT + 1 for digits in (first, second))
    return low, low if not comma else high if second else None


def written_bounds(low: int, high: int | None) -> str:
    """Of a repetition, as all notations have them."""
    symbols = (symbol for symbol, bounds in REPETITIONS.items() if bounds == (low, high))
    return next(symbols, f"{{{low},{'' if high is None else high}}}")


# Rules


def references(expression: Expression) -> Iterator[str]:
    """The rules that an expression names, from left to right."""
    stack = [expression]
    while stack:
        part = stack.pop()
        if isinstance(part, Rule):
            yield part.name
        stack += reversed(children(part))


def reachable(rules: dict[str, Expression]) -> list[str]:
    """The rules that `root` needs, each behind those that it refers to, as far as there are no circles."""
    order: list[str] = []
    seen = {"root"}
    stack = [("root", references(rules["root"]))]
    while stack:
        name, names = stack[-1]
        following = next((other for other in names if other not in seen), None)
        if following is None:
            order.append(name)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, references(rules[following])))
    return order


def is_nullable(expression: Expression, is_rule: Callable[[str], bool]) -> bool:
    """Whether it matches the empty text, if the rules do of which `is_rule` says so."""
    return _has_way(expression, lambda part: is_rule(part.name) if isinstance(part, Rule) else part == Text(""))


def is_possible(expression: Expression, possible: set[str]) -> bool:
    """Whether some finite text matches it, if the rules are those of which this is known."""
    return _has_way(
        expression, lambda part: part.name in possible if isinstance(part, Rule) else part != Characters(())
    )


def _has_way(expression: Expression, is_open: Callable[[Expression], bool]) -> bool:
    """Whether one can go through it by texts, characters and rules that are all open."""
    match expression:
        case Sequence(parts):
            return all(_has_way(part, is_open) for part in parts)
        case Choice(options):
            return any(_has_way(option, is_open) for option in options)
        case Repeat(part, low):
            return low == 0 or _has_way(part, is_open)
    return is_open(expression)


def possible_rules(rules: dict[str, Expression], field: str) -> set[str]:
    """The rules that `root` needs and some finite text matches. Raises UnsupportedGrammarError, with `field` first."""
    possible: set[str] = set()
    order = reachable(rules)
    for _ in range(_MAX_PASSES):
        num_before = len(possible)
        for name in order:
            if name not in possible and is_possible(rules[name], possible):
                possible.add(name)
        if len(possible) == num_before:
            return possible
    raise UnsupportedGrammarError(f"{field}: its rules refer to each other in too many circles; simplify it")
