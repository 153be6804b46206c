"""Context-free grammars over characters: drawn at random, written in both notations, and recognised independently."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class OneOf:
    """One of some characters."""

    characters: str


@dataclass(frozen=True)
class Rule:
    name: str


@dataclass(frozen=True)
class Sequence:
    """The empty one matches nothing but the empty text."""

    parts: tuple["Expression", ...]


@dataclass(frozen=True)
class Choice:
    parts: tuple["Expression", ...]


@dataclass(frozen=True)
class Repeat:
    part: "Expression"
    least: int
    most: int | None


Expression: TypeAlias = Text | OneOf | Rule | Sequence | Choice | Repeat
START = "start"


@dataclass(frozen=True)
class Grammar:
    rules: Mapping[str, Expression]
    """Names are lower-case letters and digits; `START` is among them."""

    def as_lark(self) -> str:
        return "\n".join(f"{name}: {_written(rule, lark=True)}" for name, rule in self.rules.items())

    def as_gbnf(self) -> str:
        return "\n".join(f"{_gbnf_name(name)} ::= {_written(rule, lark=False)}" for name, rule in self.rules.items())

    def draw(self, rng: random.Random, num_choices: int = 24) -> str:
        """A text of the language, by the grammar's own derivation; after so many free choices by the lowest one."""
        left = iter(range(num_choices))
        return self._drawn(Rule(START), rng, left)

    def _drawn(self, expression: Expression, rng: random.Random, left: Iterator[int]) -> str:
        match expression:
            case Text(text):
                return text
            case OneOf(characters):
                return rng.choice(characters)
            case Rule(name):
                return self._drawn(self.rules[name], rng, left)
            case Sequence(parts):
                return "".join(self._drawn(part, rng, left) for part in parts)
            case Choice(parts):
                is_free = next(left, None) is not None
                return self._drawn(rng.choice(parts) if is_free else min(parts, key=self._height), rng, left)
            case Repeat(part, least, most):
                is_free = next(left, None) is not None
                count = rng.randint(least, least + 2 if most is None else most) if is_free else least
                return "".join(self._drawn(part, rng, left) for _ in range(count))

    def _height(self, expression: Expression) -> float:
        """Rules below each other in the lowest derivation; infinite if there is none."""
        match expression:
            case Rule(name):
                return self._heights[name] + 1
            case Sequence(parts):
                return max(map(self._height, parts), default=0)
            case Choice(parts):
                return min(map(self._height, parts))
            case Repeat(part, least, _):
                return self._height(part) if least else 0
            case _:
                return 0

    @cached_property
    def _heights(self) -> dict[str, float]:
        self.__dict__["_heights"] = heights = dict.fromkeys(self.rules, float("inf"))
        for _ in self.rules:
            for name, rule in self.rules.items():
                heights[name] = min(heights[name], self._height(rule))
        return heights

    @property
    def is_productive(self) -> bool:
        """Whether every rule has a text, so that no beginning of a derivation is in vain."""
        return max(self._heights.values()) < float("inf")


def random_grammar(rng: random.Random, *, max_text_length: int = 1) -> Grammar:
    """Up to five rules, in which everything may occur: recursion on either side, empty and ambiguous rules, and such
    as are never used. Each has a text."""
    while True:
        names = [START, *(f"r{index}" for index in range(rng.randint(1, 4)))]
        rules = {name: _random_choice(rng, names, max_text_length) for name in names}
        grammar = Grammar(rules)
        if grammar.is_productive and len({grammar.draw(rng) for _ in range(12)}) > 2:
            return grammar


ALPHABET = "abé"


def _random_choice(rng: random.Random, names: list[str], max_text_length: int) -> Expression:
    parts = tuple(_random_sequence(rng, names, max_text_length) for _ in range(rng.randint(1, 3)))
    return parts[0] if len(parts) == 1 else Choice(parts)


def _random_sequence(rng: random.Random, names: list[str], max_text_length: int) -> Expression:
    parts = tuple(_random_part(rng, names, max_text_length) for _ in range(rng.choice((0, 1, 1, 2, 2, 3))))
    return parts[0] if len(parts) == 1 else Sequence(parts)


def _random_part(rng: random.Random, names: list[str], max_text_length: int) -> Expression:
    kind = rng.random()
    if kind < 0.45:
        return Text("".join(rng.choices(ALPHABET, k=rng.randint(1, max_text_length))))
    if kind < 0.55:
        return OneOf("".join(sorted(rng.sample(ALPHABET, 2))))
    if kind < 0.85:
        return Rule(rng.choice(names))
    if kind < 0.92:
        return _random_choice(rng, names, max_text_length)
    least = rng.randint(0, 1)
    most = rng.choice((None, 1, 2))
    return Repeat(_random_part(rng, names, max_text_length), least, most if most is None else max(most, 1))


def _gbnf_name(name: str) -> str:
    return "root" if name == START else name


def _written(expression: Expression, *, lark: bool) -> str:
    match expression:
        case Text(text):
            return f'"{text}"'
        case OneOf(characters):
            return f"/[{characters}]/" if lark else f"[{characters}]"
        case Rule(name):
            return name if lark else _gbnf_name(name)
        case Sequence(parts):
            return " ".join(_written_part(part, lark=lark) for part in parts) or '""'
        case Choice(parts):
            return " | ".join(_written_part(part, lark=lark) for part in parts)
        case Repeat(part, least, most):
            simple = {(0, 1): "?", (0, None): "*", (1, None): "+"}
            count = simple.get((least, most)) or f"{{{least},{most}}}"
            return _written_part(part, lark=lark) + count


def _written_part(expression: Expression, *, lark: bool) -> str:
    written = _written(expression, lark=lark)
    return f"({written})" if isinstance(expression, Sequence | Choice | Repeat) else written


_Symbol: TypeAlias = str | frozenset[str]
_Item: TypeAlias = tuple[int, int, int]
"""A production, how much of it has been read, and the place at which it began."""


class Recogniser:
    """Earley's: reads a text character by character and knows whether it is in the language, or the beginning of it."""

    def __init__(self, grammar: Grammar) -> None:
        self._productions: list[tuple[str, tuple[_Symbol, ...]]] = []
        self._num_helpers = 0
        for name, rule in grammar.rules.items():
            self._add(name, rule)
        self._of = {
            name: [index for index, (left, _) in enumerate(self._productions) if left == name]
            for name in {left for left, _ in self._productions}
        }
        self._nullable = self._find_nullable()
        self._columns = [self._closed([(index, 0, 0) for index in self._of[START]], [])]

    def read(self, character: str) -> bool:
        """Goes on by a character. Returns whether it could follow; if not, nothing has changed."""
        items = [
            (production, dot + 1, origin)
            for production, dot, origin in self._columns[-1]
            if isinstance(symbol := self._symbol(production, dot), frozenset) and character in symbol
        ]
        if items:
            self._columns.append(self._closed(items, self._columns))
        return bool(items)

    @property
    def is_accepting(self) -> bool:
        return any(
            origin == 0 and self._productions[production][0] == START and self._symbol(production, dot) is None
            for production, dot, origin in self._columns[-1]
        )

    def recognises(self, text: str) -> bool:
        del self._columns[1:]
        return all(map(self.read, text)) and self.is_accepting

    def is_beginning(self, text: str) -> bool:
        """Whether some text of the language begins so, if all rules of the grammar have texts."""
        del self._columns[1:]
        return all(map(self.read, text))

    def _closed(self, items: list[_Item], columns: list[list[_Item]]) -> list[_Item]:
        """A column, with all that its items predict and complete."""
        place = len(columns)
        column = list(dict.fromkeys(items))
        known = set(column)
        for production, dot, origin in column:  # it grows
            symbol = self._symbol(production, dot)
            if symbol is None:
                left = self._productions[production][0]
                parents = column if origin == place else columns[origin]
                new = [(p, d + 1, o) for p, d, o in parents if self._symbol(p, d) == left]
            elif isinstance(symbol, str):
                new = [(index, 0, place) for index in self._of[symbol]]
                if symbol in self._nullable:
                    new.append((production, dot + 1, origin))
            else:
                continue
            for item in new:
                if item not in known:
                    known.add(item)
                    column.append(item)
        return column

    def _symbol(self, production: int, dot: int) -> _Symbol | None:
        symbols = self._productions[production][1]
        return symbols[dot] if dot < len(symbols) else None

    def _find_nullable(self) -> set[str]:
        nullable: set[str] = set()
        while True:
            more = {left for left, symbols in self._productions if all(symbol in nullable for symbol in symbols)}
            if more <= nullable:
                return nullable
            nullable |= more

    def _add(self, name: str, expression: Expression) -> None:
        for part in expression.parts if isinstance(expression, Choice) else (expression,):
            self._productions.append((name, tuple(self._symbols(part))))

    def _symbols(self, expression: Expression) -> Iterator[_Symbol]:
        match expression:
            case Text(text):
                yield from map(frozenset, text)
            case OneOf(characters):
                yield frozenset(characters)
            case Rule(name):
                yield name
            case Sequence(parts):
                for part in parts:
                    yield from self._symbols(part)
            case Choice():
                yield self._helper(expression)
            case Repeat(part, least, most):
                once = self._helper(part)
                yield from [once] * least
                if most is None:
                    yield self._helper_of_many(once)
                else:
                    yield from [self._helper(Choice((Sequence(()), Rule(once))))] * (most - least)

    def _helper(self, expression: Expression) -> str:
        self._num_helpers += 1
        name = f"<{self._num_helpers}>"
        self._add(name, expression)
        return name

    def _helper_of_many(self, once: str) -> str:
        self._num_helpers += 1
        name = f"<{self._num_helpers}>"
        self._productions += [(name, ()), (name, (name, once))]
        return name
