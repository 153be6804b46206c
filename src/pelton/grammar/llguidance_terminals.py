"""Rules over terminals, and whether it matters how a lexer splits a text into these."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from pelton.grammar.characters import Ranges, single, union
from pelton.grammar.expressions import (
    Characters,
    Choice,
    Expression,
    Repeat,
    Rule,
    Sequence,
    Text,
    children,
    is_nullable,
)

MAX_PASSES = 200
"""Over all rules, to find what may follow what."""
MAX_COMPARED = 300_000
"""Pairs of characters that may be compared to see whether lexing decides anything."""


@dataclass(frozen=True, slots=True)
class Lexed:
    """A grammar whose rules hold no characters, but the names of rules and of terminals."""

    rules: dict[str, Expression]
    terminals: dict[str, Expression]
    """What the lexer takes as one, by names that no rule has."""


@dataclass(frozen=True, slots=True)
class _Positions:
    """An expression by the characters that it is written with: which may be first, and which last."""

    first: frozenset[int]
    last: frozenset[int]
    nullable: bool


class _TooLargeError(Exception):
    """It would take too long to see what lexing does."""


class _Automaton:
    """What a terminal's text may be, by position: the characters there, and the positions after it.

    Bounds of repetitions are left out, so that there may be more texts than there are.
    """

    def __init__(self, expression: Expression, rules: dict[str, Expression]) -> None:
        self._rules = rules
        self._room = MAX_COMPARED
        self.characters: list[Ranges] = []
        self.after: list[set[int]] = []
        positions = self._positions(expression)
        self.first, self.last, self.nullable = positions.first, positions.last, positions.nullable

    def _positions(self, expression: Expression) -> _Positions:
        match expression:
            case Text(text):
                return self._in_order([self._single(single(ord(char))) for char in text])
            case Characters(ranges):
                return self._single(ranges)
            case Rule(name):
                return self._positions(self._rules[name])
            case Sequence(parts):
                return self._in_order([self._positions(part) for part in parts])
            case Repeat(part, low, high):
                inner = self._positions(part)
                if high != 1:
                    self._connect(inner.last, inner.first)
                return _Positions(inner.first, inner.last, low == 0 or inner.nullable)
        options = [self._positions(option) for option in children(expression)]
        empty: frozenset[int] = frozenset()
        return _Positions(
            empty.union(*(option.first for option in options)),
            empty.union(*(option.last for option in options)),
            any(option.nullable for option in options),
        )

    def _single(self, ranges: Ranges) -> _Positions:
        position = frozenset((len(self.characters),))
        self.characters.append(ranges)
        self.after.append(set())
        return _Positions(position, position, nullable=False)

    def _in_order(self, parts: list[_Positions]) -> _Positions:
        total = _Positions(frozenset(), frozenset(), nullable=True)
        for part in parts:
            self._connect(total.last, part.first)
            total = _Positions(
                total.first | part.first if total.nullable else total.first,
                total.last | part.last if part.nullable else part.last,
                total.nullable and part.nullable,
            )
        return total

    def _connect(self, last: frozenset[int], first: frozenset[int]) -> None:
        self._room -= len(last) * len(first)
        if self._room < 0:
            raise _TooLargeError
        for position in last:
            self.after[position] |= first


def lexing_decides(lexed: Lexed, rules: dict[str, Expression]) -> bool:
    """Whether it may be of effect that a terminal goes on as long as it, or another one, can. `rules` are those that
    the terminals may name."""
    try:
        return _LexingCheck(lexed, rules).may_decide()
    except _TooLargeError:
        return True


class _LexingCheck:
    def __init__(self, lexed: Lexed, rules: dict[str, Expression]) -> None:
        self._rules = lexed.rules
        self._terminals = {name: _Automaton(terminal, rules) for name, terminal in lexed.terminals.items()}
        # Of rules and terminals: the characters that may be first, and behind it, and whether it may be empty.
        self._first: dict[str, Ranges] = dict.fromkeys(lexed.rules, ())
        self._follow: dict[str, Ranges] = dict.fromkeys((*lexed.rules, *lexed.terminals), ())
        self._nullable = dict.fromkeys(lexed.rules, False)
        for name, automaton in self._terminals.items():
            self._first[name] = union(*(automaton.characters[position] for position in automaton.first))
            self._nullable[name] = automaton.nullable
        self._num_compared = 0

    def may_decide(self) -> bool:
        """Raises _TooLargeError."""
        self._until_stable(self._update_first)
        self._until_stable(self._update_follow)
        return any(
            self._may_go_on(left, self._follow[name], right)
            for name, left in self._terminals.items()
            for right in self._terminals.values()
        )

    @staticmethod
    def _until_stable(update: Callable[[], bool]) -> None:
        for _ in range(MAX_PASSES):
            if not update():
                return
        raise _TooLargeError

    def _update_first(self) -> bool:
        before = dict(self._first), dict(self._nullable)
        self._first |= {name: self._first_of(rule) for name, rule in self._rules.items()}
        self._nullable |= {name: self._is_nullable(rule) for name, rule in self._rules.items()}
        return before != (self._first, self._nullable)

    def _is_nullable(self, expression: Expression) -> bool:
        return is_nullable(expression, self._nullable.__getitem__)

    def _first_of(self, expression: Expression) -> Ranges:
        parts = children(expression)
        match expression:
            case Rule(name):
                return self._first[name]
            case Sequence():
                parts = tuple(part for index, part in enumerate(parts) if all(map(self._is_nullable, parts[:index])))
        return union(*map(self._first_of, parts))

    def _update_follow(self) -> bool:
        before = dict(self._follow)
        for name, rule in self._rules.items():
            self._spread(rule, self._follow[name])
        return before != self._follow

    def _spread(self, expression: Expression, follow: Ranges) -> None:
        """Say what may come after it to all that it may end with."""
        match expression:
            case Rule(name):
                self._follow[name] = union(self._follow[name], follow)
            case Sequence(parts):
                for part in reversed(parts):
                    self._spread(part, follow)
                    follow = union(self._first_of(part), follow if self._is_nullable(part) else ())
            case Choice(options):
                for option in options:
                    self._spread(option, follow)
            case Repeat(part, _, high):
                self._spread(part, follow if high == 1 else union(follow, self._first_of(part)))

    def _may_go_on(self, left: _Automaton, after: Ranges, right: _Automaton) -> bool:
        """Whether a text of `left`, and a character that may come after it, begin a text of `right`."""
        pending = list(product(left.first, right.first))
        seen: set[tuple[int, int]] = set()
        while pending:
            pair = pending.pop()
            if pair in seen:
                continue
            seen.add(pair)
            one, other = pair
            self._num_compared += 1 + len(right.after[other])
            if self._num_compared > MAX_COMPARED:
                raise _TooLargeError
            if not _overlap(left.characters[one], right.characters[other]):
                continue
            if one in left.last and any(_overlap(after, right.characters[to]) for to in right.after[other]):
                return True
            pending += product(left.after[one], right.after[other])
        return False


def _overlap(left: Ranges, right: Ranges) -> bool:
    return any(low <= end and start <= high for low, high in left for start, end in right)
