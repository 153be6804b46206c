"""Rules over terminals, and whether it matters how a lexer splits a text into these."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from pelton.grammar.llguidance_regex import Ranges, union
from pelton.grammar.xgrammar_ebnf import Characters, Expression, Repeat, Rule, Sequence, Text, children

MAX_PASSES = 200
"""Over all rules, to find what may follow what."""
MAX_COMPARED = 300_000
"""Pairs of characters that may be compared to see whether lexing decides anything."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """What the lexer takes as one; `optional`: it may be left out, for the expression matches the empty text."""

    expression: Expression
    optional: bool


@dataclass(frozen=True, slots=True)
class InOrder:
    parts: tuple["Tree", ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    options: tuple["Tree", ...]


@dataclass(frozen=True, slots=True)
class Times:
    part: "Tree"
    low: int
    high: int | None


Tree = Terminal | Rule | InOrder | OneOf | Times


def parts_of(tree: Tree) -> tuple[Tree, ...]:
    match tree:
        case InOrder(parts):
            return parts
        case OneOf(options):
            return options
        case Times(part):
            return (part,)
    return ()


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
        self.first, self.last = positions.first, positions.last

    def _positions(self, expression: Expression) -> _Positions:
        match expression:
            case Text(text):
                return self._in_order([self._single(((ord(char), ord(char)),)) for char in text])
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


def lexing_decides(rules: dict[str, Expression], trees: dict[str, Tree]) -> bool:
    """Whether it may be of effect that a terminal goes on as long as it, or another one, can."""
    try:
        return _LexingCheck(rules, trees).may_decide()
    except _TooLargeError:
        return True


class _LexingCheck:
    def __init__(self, rules: dict[str, Expression], trees: dict[str, Tree]) -> None:
        self._trees = trees
        self._first: dict[str, Ranges] = dict.fromkeys(trees, ())
        self._nullable: dict[str, bool] = dict.fromkeys(trees, False)
        self._follow: dict[str, Ranges] = dict.fromkeys(trees, ())
        self._terminals: dict[Expression, _Automaton] = {}
        self._after: dict[Expression, Ranges] = {}
        for tree in trees.values():
            self._collect(tree, rules)
        self._num_compared = 0

    def may_decide(self) -> bool:
        """Raises _TooLargeError."""
        self._until_stable(self._update_first)
        self._until_stable(self._update_follow)
        return any(
            self._may_go_on(left, self._after[expression], right)
            for expression, left in self._terminals.items()
            for right in self._terminals.values()
        )

    def _collect(self, tree: Tree, rules: dict[str, Expression]) -> None:
        if isinstance(tree, Terminal) and tree.expression not in self._terminals:
            self._terminals[tree.expression] = _Automaton(tree.expression, rules)
            self._after[tree.expression] = ()
        for part in parts_of(tree):
            self._collect(part, rules)

    @staticmethod
    def _until_stable(update: Callable[[], bool]) -> None:
        for _ in range(MAX_PASSES):
            if not update():
                return
        raise _TooLargeError

    def _update_first(self) -> bool:
        found = {name: self._first_of(tree) for name, tree in self._trees.items()}
        nullable = {name: self._is_nullable(tree) for name, tree in self._trees.items()}
        changed = (found, nullable) != (self._first, self._nullable)
        self._first, self._nullable = found, nullable
        return changed

    def _is_nullable(self, tree: Tree) -> bool:
        match tree:
            case Terminal(_, optional):
                return optional
            case Rule(name):
                return self._nullable[name]
            case InOrder(parts):
                return all(map(self._is_nullable, parts))
            case OneOf(options):
                return any(map(self._is_nullable, options))
            case Times(part, low, _):
                return low == 0 or self._is_nullable(part)

    def _first_of(self, tree: Tree) -> Ranges:
        match tree:
            case Terminal(expression):
                automaton = self._terminals[expression]
                return union(*(automaton.characters[position] for position in automaton.first))
            case Rule(name):
                return self._first[name]
            case InOrder(parts):
                needed = [part for index, part in enumerate(parts) if all(map(self._is_nullable, parts[:index]))]
                return union(*map(self._first_of, needed))
        return union(*map(self._first_of, parts_of(tree)))

    def _update_follow(self) -> bool:
        before = dict(self._follow), dict(self._after)
        for name, tree in self._trees.items():
            self._spread(tree, self._follow[name])
        return before != (self._follow, self._after)

    def _spread(self, tree: Tree, follow: Ranges) -> None:
        """Say what may come after the tree to all that it may end with."""
        match tree:
            case Terminal(expression):
                self._after[expression] = union(self._after[expression], follow)
            case Rule(name):
                self._follow[name] = union(self._follow[name], follow)
            case InOrder(parts):
                for part in reversed(parts):
                    self._spread(part, follow)
                    follow = union(self._first_of(part), follow if self._is_nullable(part) else ())
            case OneOf(options):
                for option in options:
                    self._spread(option, follow)
            case Times(part, _, high):
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
