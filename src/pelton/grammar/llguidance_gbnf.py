"""Grammars in GBNF for llguidance, without the difference that its lexer would make.

llguidance splits an output into terminals and lets each go on as long as it can, whatever the rules need. Runs of
characters, texts and rules that do not hold themselves become terminals only where that decides nothing: where no
character that may follow a terminal could also continue one. Else single texts and rules do, or single characters.
"""

from collections.abc import Iterator
from enum import Enum, auto

from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.llguidance_regex import CharSet, write_regex
from pelton.grammar.llguidance_terminals import InOrder, OneOf, Terminal, Times, Tree, lexing_decides, parts_of
from pelton.grammar.llguidance_text import lark_text
from pelton.grammar.xgrammar_ebnf import (
    Characters,
    Choice,
    Expression,
    Repeat,
    Rule,
    Sequence,
    Text,
    children,
    is_possible,
)

MAX_TERMINAL = 500_000
"""Characters of one terminal, as it is written."""
MAX_TERMINALS = 1_000_000
"""Of the rules that may be put into others."""
MAX_HEIGHT = 200
"""Levels of a terminal's expression."""
MAX_PASSES = 200
"""Over all rules, to find those that some text completes."""


class Grain(Enum):
    """What becomes a terminal."""

    RUNS = auto()
    RULES = auto()
    CHARACTERS = auto()


def gbnf_as_lark(rules: dict[str, Expression]) -> str:
    """In Lark's notation, which begins with the rule `start`."""
    _check_possible(rules)
    regular = _Regular(rules)
    trees: dict[str, Tree] = {}
    for grain in Grain:
        trees = _trees(rules, regular, grain)
        if isinstance(trees["root"], Terminal) or grain is Grain.CHARACTERS or not lexing_decides(rules, trees):
            break
    return _Writer(trees, regular).written()


class _Regular:
    """Which expressions hold no rule that holds itself, and what they are as terminals in Lark's notation."""

    def __init__(self, rules: dict[str, Expression]) -> None:
        self._rules = rules
        self._known: dict[str, str] = {}
        self._find_rules()

    def _find_rules(self) -> None:
        """From those that refer to none to those that refer to known ones."""
        users: dict[str, list[str]] = {name: [] for name in self._rules}
        num_unknown = {}
        for name, rule in self._rules.items():
            used = set(_references(rule))
            num_unknown[name] = len(used)
            for other in used:
                users[other].append(name)
        ready = [name for name, count in num_unknown.items() if not count]
        room = MAX_TERMINALS
        heights: dict[str, int] = {}
        while ready:
            name = ready.pop()
            found = self.terminal(self._rules[name])
            heights[name] = _height(self._rules[name], heights)
            if found is None or len(found) > room or heights[name] > MAX_HEIGHT:
                continue
            self._known[name] = found
            room -= len(found)
            for user in users[name]:
                num_unknown[user] -= 1
                if not num_unknown[user]:
                    ready.append(user)

    def terminal(self, expression: Expression) -> str | None:
        """None for what is not regular, or too long."""
        match expression:
            case Text(text):
                return lark_text(text)
            case Characters(ranges):
                written = write_regex(CharSet(ranges))
                if written is None:
                    raise UnsupportedGrammarError("grammar: a class of characters is empty; leave it out")
                return f"/{written}/"
            case Rule(name):
                return self._known.get(name)
            case Repeat(part, low, high):
                inner = self.terminal(part)
                return None if inner is None else f"({inner}){written_bounds(low, high)}"
        pieces = []
        for part in children(expression):
            piece = self.terminal(part)
            if piece is None:
                return None
            pieces.append(piece)
        joined = f"({(' ' if isinstance(expression, Sequence) else ' | ').join(pieces)})"
        return joined if len(joined) <= MAX_TERMINAL else None

    def is_optional(self, expression: Expression) -> bool:
        """Whether a regular one matches the empty text."""
        match expression:
            case Text(text):
                return not text
            case Rule(name):
                return self.is_optional(self._rules[name])
            case Sequence(parts):
                return all(map(self.is_optional, parts))
            case Choice(options):
                return any(map(self.is_optional, options))
            case Repeat(part, low, _):
                return low == 0 or self.is_optional(part)
        return False


def _references(expression: Expression) -> Iterator[str]:
    if isinstance(expression, Rule):
        yield expression.name
    for child in children(expression):
        yield from _references(child)


def _height(expression: Expression, heights: dict[str, int]) -> int:
    """Levels of the expression, with those of its rules."""
    if isinstance(expression, Rule):
        return 1 + heights[expression.name]
    return 1 + max((_height(child, heights) for child in children(expression)), default=0)


def _check_possible(rules: dict[str, Expression]) -> None:
    """Refuse what no finite text can complete."""
    possible: set[str] = set()
    order = list(rules.items())
    for _ in range(MAX_PASSES):
        num_before = len(possible)
        order.reverse()
        for name, rule in order:
            if name not in possible and is_possible(rule, possible):
                possible.add(name)
        if len(possible) == num_before:
            break
    if "root" not in possible:
        raise UnsupportedGrammarError("grammar: no finite output satisfies it")


def _trees(rules: dict[str, Expression], regular: _Regular, grain: Grain) -> dict[str, Tree]:
    """The rules over terminals."""

    def is_terminal(expression: Expression) -> bool:
        if grain is Grain.CHARACTERS or (grain is Grain.RULES and isinstance(expression, Sequence)):
            return False
        return regular.terminal(expression) is not None

    def tree(expression: Expression) -> Tree:
        if is_terminal(expression):
            return Terminal(expression, regular.is_optional(expression))
        match expression:
            case Text(text):
                return InOrder(tuple(Terminal(Text(char), False) for char in text))
            case Characters():
                return Terminal(expression, False)
            case Rule():
                return expression
            case Sequence(parts):
                return InOrder(tuple(map(tree, _runs(parts, regular) if grain is Grain.RUNS else parts)))
            case Choice(options):
                return OneOf(tuple(map(tree, options)))
            case Repeat(part, low, high):
                return Times(tree(part), low, high)

    trees = {"root": tree(rules["root"])}
    pending = list(_rules_of(trees["root"]))
    while pending:
        name = pending.pop()
        if name not in trees:
            trees[name] = tree(rules[name])
            pending += _rules_of(trees[name])
    return trees


def _rules_of(tree: Tree) -> Iterator[str]:
    if isinstance(tree, Rule):
        yield tree.name
    for part in parts_of(tree):
        yield from _rules_of(part)


def _runs(parts: tuple[Expression, ...], regular: _Regular) -> list[Expression]:
    """With regular neighbours put together, as far as they make one terminal."""
    found: list[Expression] = []
    run: list[Expression] = []
    length = 0
    for part in parts:
        written = regular.terminal(part)
        if run and (written is None or length + len(written) > MAX_TERMINAL // 2):
            found.append(Sequence(tuple(run)))
            run, length = [], 0
        if written is None:
            found.append(part)
        else:
            run.append(part)
            length += len(written) + 1
    return [*found, Sequence(tuple(run))] if run else found


class _Writer:
    def __init__(self, trees: dict[str, Tree], regular: _Regular) -> None:
        self._trees, self._regular = trees, regular
        self._names = {"root": "start"}
        self._terminals: dict[str, str] = {}

    def written(self) -> str:
        lines: dict[str, str] = {}
        while pending := [name for name in self._names if name not in lines]:
            lines |= {name: f"{self._names[name]}: {self._tree(self._trees[name])}" for name in pending}
        return "\n".join([*lines.values(), *(f"{name}: {source}" for source, name in self._terminals.items())]) + "\n"

    def _tree(self, tree: Tree) -> str:
        match tree:
            case Terminal(expression, optional):
                return self._terminal(self._regular.terminal(expression) or "", optional)
            case Rule(name):
                return self._names.setdefault(name, f"r{len(self._names)}")
            case InOrder(parts):
                return " ".join(map(self._tree, parts)) or '""'
            case OneOf(options):
                return f"({' | '.join(map(self._tree, options))})"
            case Times(part, low, high):
                return f"({self._tree(part)}){written_bounds(low, high)}"

    def _terminal(self, body: str, optional: bool) -> str:
        """It has at least one character."""
        source = f"({body}) & /(?s:.)+/" if optional else body
        name = self._terminals.setdefault(source, f"T{len(self._terminals)}")
        return f"{name}?" if optional else name


def written_bounds(low: int, high: int | None) -> str:
    return "*" if (low, high) == (0, None) else f"{{{low},{'' if high is None else high}}}"
